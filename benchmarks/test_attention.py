"""Attention over pages: decoding, a draft tree, prefill. ``pytest benchmarks/test_attention.py`` prints µs and GB/s."""

import numpy as np
import pytest
from batches import chain, ragged, tree
from compare import assert_close

from dflash.kernels.attention import attend, reference
from dflash.kernels.ragged import PAGE

CASES = [
    (512, 1, "chain"),
    (512, 16, "chain"),
    (512, 22, "tree"),
    (512, 512, "prefill"),
    (16384, 1, "chain"),
    (16384, 16, "tree"),
]


@pytest.mark.parametrize("shape", [(4, 2), (24, 4)], ids=["4-over-2", "24-over-4"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_attend(benchmark, capsys, case, shape):
    (length, n, form), (heads, kv) = case, shape
    width, rng = 256, np.random.default_rng(1)
    rows = ragged([(length, tree(rng, n) if form == "tree" else chain(n), form == "prefill")])
    pages = rows.pages.max() + 1
    k, v = (
        rng.standard_normal((pages, PAGE, kv, width), dtype=np.float32).astype(np.float16).view(np.uint16) for _ in range(2)
    )
    q, gate = (rng.standard_normal(x, dtype=np.float32) for x in ((n, heads, width), (n, heads * 2 * width)))
    out = np.empty((n, heads * width), np.float32)
    attend(q, k, v, rows, out=out, gate=gate)
    if form != "tree":  # the last row alone is the same text
        last = ragged([(length + n - 1, [-1], False)], pages=rows.pages)
        want = np.empty((1, heads * width))
        reference.attend(q[-1:], k, v, last, out=want, gate=gate[-1:])
        assert_close(form, out[-1:], want, 1e-6)
    else:
        want = np.empty(out.shape)
        reference.attend(q, k, v, rows, out=want, gate=gate)
        assert_close(form, out, want, 1e-6)
    benchmark.pedantic(attend, (q, k, v, rows), {"out": out, "gate": gate}, rounds=30, warmup_rounds=3)
    seconds = benchmark.stats.stats.median
    moved, products = 4 * (length + n) * kv * width, 2 * n * heads * width * (length + int(rows.depth.mean()) + 1)
    with capsys.disabled():
        print(
            f"\nattend {heads} over {kv} heads, {n} rows ({form}) after {length}: {seconds * 1e6:.1f} µs, "
            f"{moved / seconds / 1e9:.1f} GB/s of cache, {2 * products / seconds / 1e9:.0f} GFLOP/s"
        )
