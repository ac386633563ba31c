"""Memory of a process beside weights and KV cache."""

from pathlib import Path

import pytest
from python_run import run_python

import dflash

SCRIPT = """
from pathlib import Path
import dflash
with dflash.load("demo") as lm:
    generation = lm.generate("def f(x):\\n" * 300, max_tokens=32)
    tokens = generation.usage.total_tokens
    kv = lm.info()["memory"]["kv_per_1000_tokens"] * tokens / 1000
    size = lm.file.path.stat().st_size
    status = Path("/proc/self/status").read_text()
    print(1024 * int(status.split("VmHWM:")[1].split()[0]), size + kv)
"""


def peak():
    return map(float, run_python("-c", SCRIPT).stdout.split())


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_peak_memory_stays_below_the_bound():
    """Kernels are compiled by the first run, the second finds them on the disk."""
    dflash.load("demo").close()
    used, weights_and_cache = peak()
    assert used < weights_and_cache + 400e6
