"""Attention on a GPU for float32 caches, layers with a window, and large heads: a block for each row and query head."""

from pathlib import Path

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, check
from dflash.kernels.gpu.batch import BatchArrays
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.kv_types import value_bits
from dflash.kernels.rope.cuda import HALVES, check_cache

_HERE = Path(__file__).parent
LARGEST_HEAD = 512
"""Largest head of `AttendRows`; a quantized cache stores heads of up to 256."""


class AttendRows(RowLaunch):
    """`dflash.kernels.attention.attend` of pending rows or of prefill, on fixed arrays.

    q: float16 (T, H, D), or float32 for a float32 cache; queries from `Rotate`; D is at most `LARGEST_HEAD`. Float16 arrays
        may be given as uint16.
    k, v: float16 or float32 (pages, PAGE, KV, D), int8 (pages, PAGE, KV, D + 16), or uint8 (pages, PAGE, KV, D / 2 + 16);
        cache of one layer; int8 is q8_0, uint8 q4_0. Quantized keys and values may have different types. The keys and values
        of the rows are in it already.
    gate: float32 (T, H * 2 * D), optional; query projection whose heads hold D gates after the D query values.
    window: tokens that a row sees at most: itself and the ``window - 1`` before it. 0 for all.

    Everything is float32 but for the stored values and the result. The bits of a row depend only on what it sees and on its
    position: chains, single steps, paths of a tree and prompts agree bit for bit. One launch. Reads
    ``2 * min(length, window) * D`` elements of the cache for each row and query head, mostly from the L2 cache.
    """

    def __init__(
        self,
        q: GpuArray,
        k: GpuArray,
        v: GpuArray,
        batch: BatchArrays,
        out: GpuArray,
        *,
        gate: GpuArray = None,
        window: int = 0,
    ) -> None:
        check_cache("attend rows", k, v, q, most=LARGEST_HEAD)
        rows, heads, width = q.shape
        check("attend rows: out", out, (rows, heads * width), HALVES)
        if gate is not None:
            check("attend rows: gate", gate, (rows, heads * 2 * width))
        if window < 0:
            raise KernelError(f"attend rows: window is {window}, must be at least 0")
        kv = k.shape[2]
        constants = {"HEAD_DIM": width, "GROUP_SIZE": heads // kv, "KV_HEADS": kv, "WINDOW": window}
        constants |= {"KEY_BITS": value_bits(k), "VALUE_BITS": value_bits(v), "GATED": int(gate is not None)}
        b, made = batch, kernel(_HERE / "attend_rows.cu", "attend_rows", dependent=True, **constants)
        of_rows = b.counts, b.row_starts, b.sequence, b.parent, b.depth, b.length, b.pages, b.max_pages
        args = *(array.view(cupy.uint8) for array in (q, k, v)), *of_rows, gate, out
        super().__init__(made.bind((heads, 1), 256, args), heads)
