"""A study on a GPU: its record has the copy bandwidth of the device, and its clocks where the driver says them."""

import dflash
from dflash.evaluation.prompt_sets import Case


def test_a_record_on_a_gpu_says_how_fast_the_device_was():
    with dflash.load("demo", device="cuda", context=512, sequences=2, kv_bytes=64 << 20) as lm:
        found = dflash.study(lm, ["plain"], [Case("a", [5, 6, 7, 8])], max_tokens=2)
    machine = found.records[0]["machine"]
    assert machine["copy_bytes_per_second"] > 0
    clocks = machine["clocks"]
    assert clocks is None or 0 < clocks["sm_min_mhz"] <= clocks["sm_mhz"] <= clocks["sm_max_mhz"]
