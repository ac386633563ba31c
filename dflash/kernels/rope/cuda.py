"""Rotary position embedding on a GPU: grids and constants from shapes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream, check
from dflash.kernels.gpu.batch import BatchArrays
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch
from dflash.kernels.kv_types import BLOCK, head_elements, head_size, is_quantized, value_bits
from dflash.kernels.ragged import PAGE
from dflash.kernels.rope import check_bias

HALVES = cupy.float16, cupy.uint16
_QUANTIZED = cupy.int8, cupy.uint8
_HERE = Path(__file__).parent
_WARPS = 4  # heads of a block, as in rotate.cuh


class Angles(RowLaunch):
    """Cosine and sine tables of every row of a pass, for all layers.

    position: int32 (T,); positions of a `DeviceBatch`.
    inv_freq: float32 (R,); radians per position of each pair.
    cos, sin: float32 (T, R); receive the tables.
    gain: factor of both tables (YaRN).

    As `dflash.kernels.rope.angles` for one position a row: one float32 product, its cosine and sine exact to float32.
    """

    def __init__(self, position: GpuArray, inv_freq: GpuArray, cos: GpuArray, sin: GpuArray, *, gain: float = 1.0) -> None:
        pairs = inv_freq.size
        check("angles: position", position, (position.size,), cupy.int32)
        check("angles: inv_freq", inv_freq, (pairs,))
        for name, table in (("cos", cos), ("sin", sin)):
            check(f"angles: {name}", table, (len(cos), pairs))
        if len(cos) > position.size:
            raise KernelError(f"angles: tables of {len(cos)} rows for {position.size} positions")
        self.arguments = position, inv_freq, gain, pairs, cos, sin
        run = kernel(_HERE / "angles.cu", "angles", dependent=True)
        super().__init__(run.bind(1, min(128, -(-pairs // 32) * 32), self.arguments))


class Rotate(RowLaunch):
    """`dflash.kernels.rope.rotate` on fixed arrays; one launch for decode and for prefill.

    query: float32 (T, H * D) or (T, H * 2 * D); projection; twice as wide if each head has D gates after its query.
    key, value: float32 (T, KV * D) or None; projections; D is a multiple of 16. None in a layer that reads the keys and
        values of another one.
    q_norm, k_norm: float32 (D,) or None; gains of the norm of each head, None for heads without a norm; `k_norm` is None
        without keys.
    cos, sin: float32 (T, R); tables from `Angles`.
    q: float16 (T, H, D), or float32 for a float32 cache; receives the queries, not scaled; float16 may be given as uint16.
        With H = 0, keys and values alone are appended.
    k, v: float16 or float32 (pages, PAGE, KV, D), int8 (pages, PAGE, KV, D + 16), or uint8 (pages, PAGE, KV, D / 2 + 16);
        cache of one layer; float16 may be given as uint16. int8 is q8_0, uint8 q4_0, see `dflash.kernels.kv_types`. With
        q4_0 keys, queries and keys are mixed after the rotation. Quantized keys and values may have different types.
    value_norm: norm the values too, without a gain.
    bias: float32 ((H + 2 * KV) * D,), optional; added to the projections before the norm, see `dflash.kernels.rope.rotate`.
    of_heads: constants that say what is done to a head before its rotation.

    Computed in float32 and rounded once when written; float16 is clamped to 65504. The bits of a row depend only on the row.
    About 2 us for few rows, else memory-bound: reads ``4 * (H + 2 * KV) * D`` bytes a row (gates are skipped), and writes
    half of that for float16, about a quarter for q8_0, an eighth for q4_0.
    """

    def __init__(
        self,
        query: GpuArray,
        key: GpuArray | None,
        value: GpuArray | None,
        q_norm: Any,
        k_norm: Any | None,
        cos: GpuArray,
        sin: GpuArray,
        batch: BatchArrays,
        *,
        eps: float,
        q: GpuArray,
        k: GpuArray,
        v: GpuArray,
        value_norm: bool = False,
        bias: GpuArray | None = None,
    ) -> None:
        check_cache("rotate", k, v, q, most=512)
        n, heads, width = q.shape
        kv, pairs = k.shape[2], cos.shape[-1]
        gated = heads > 0 and query.shape[-1] == 2 * heads * width
        if 2 * pairs > width:
            raise KernelError(f"rotate: cos rotates {2 * pairs} elements, but heads have {width}")
        check("rotate: query", query, (n, heads * width * (1 + gated)))
        if q_norm is not None:
            check("rotate: q_norm", q_norm, (width,))
        if key is not None:
            check("rotate: key", key, (n, kv * width))
            check("rotate: value", value, (n, kv * width))
            if q_norm is not None:
                check("rotate: k_norm", k_norm, (width,))
        check_bias("rotate", bias, heads, kv, width, gated=gated, dtype=cupy.float32)
        check("rotate: cos", cos, (n, pairs))
        check("rotate: sin", sin, (n, pairs))
        across = -(-(heads + (0 if key is None else 2 * kv)) // _WARPS)
        constants = {"HEAD_DIM": width, "QUERY_HEADS": heads, "KV_HEADS": kv, "ROTARY_PAIRS": pairs, "GATED": int(gated)}
        constants |= {"KEY_BITS": value_bits(k), "VALUE_BITS": value_bits(v)}
        constants |= ({"QUERIES_ONLY": 1} if key is None else {}) | ({"VALUE_NORM": 1} if value_norm else {})
        self.of_heads = ({"NORMED": 0} if q_norm is None else {}) | ({} if bias is None else {"BIASED": 1})
        constants |= self.of_heads
        made = kernel(_HERE / "rotate.cu", "rotate", dependent=True, TO_HALF=int(q.dtype in HALVES), **constants)
        rows = batch.counts, batch.row_starts, batch.sequence, batch.length, batch.pages, batch.max_pages
        written = (array.view(cupy.uint8) for array in (q, k, v))
        self.inputs, self.eps = (query, key, value, q_norm, k_norm, cos, sin), eps
        self.value_norm, self.gated, self.bias = value_norm, gated, bias
        super().__init__(made.bind(1, 32 * _WARPS, (*self.inputs, *rows, eps, *written, bias)), across)


class Append:
    """Writes keys, normed and rotated, and values of all layers of a draft model to their caches, in one launch.

    keys, values: sequence of float32 (T, KV * D); projections of each layer; rows contiguous, at addresses that are
        multiples of 16.
    gains: float32 (L, D); gain of the key norm of each layer.
    k, v: float16 or float32 (L, pages, PAGE, KV, D); caches of all layers; float16 may be given as uint16.

    Writes the same bits as `Rotate` for each layer.
    """

    def __init__(
        self,
        keys: Sequence[Any],
        values: Sequence[Any],
        gains: GpuArray,
        cos: GpuArray,
        sin: GpuArray,
        batch: Any,
        *,
        eps: float,
        k: GpuArray,
        v: GpuArray,
    ) -> None:
        layers, _, _, kv, width = k.shape
        n, pairs = cos.shape
        check("append: gains", gains, (layers, width))
        for rows in (*keys, *values):
            if rows.shape != (n, kv * width) or rows.dtype != cupy.float32 or rows.strides[1] != rows.itemsize:
                raise KernelError(f"append: rows must be float32 {(n, kv * width)}, got {rows.dtype} {rows.shape}")
        places = [(rows.data.ptr, rows.strides[0] // 4) for pair in zip(keys, values, strict=True) for rows in pair]
        self._kept, self._grid = (keys, values), (-(-2 * kv // _WARPS), layers)
        constants = {"HEAD_DIM": width, "KV_HEADS": kv, "ROTARY_PAIRS": pairs, "TO_HALF": int(k.dtype in HALVES)}
        made = kernel(_HERE / "append.cu", "append", dependent=True, **constants)
        rows_of = batch.counts, batch.row_starts, batch.sequence, batch.length, batch.pages, batch.max_pages
        caches = k[0].size, k.view(cupy.uint8), v.view(cupy.uint8)
        where = cupy.array(places, cupy.uint64)
        self._launch = made.bind(1, 32 * _WARPS, (where, gains, cos, sin, *rows_of, eps, *caches))

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run for the first `n_rows` rows; rows beyond the batch's count are not written."""
        across, layers = self._grid
        self._launch(stream, grid=(across, n_rows, layers))


def check_cache(name: str, k: GpuArray, v: GpuArray, q: GpuArray, *, most: int = 256) -> None:
    """Check a cache of heads of up to `most` elements, and that queries fit it."""
    width, quantized = head_size(k), is_quantized(k)
    fits = k.ndim == 4 and k.dtype in (cupy.float32, *_QUANTIZED, *HALVES) and k.shape[1] == PAGE
    if not fits or width % (BLOCK if quantized else 16) or width > (256 if quantized else most):
        raise KernelError(
            f"{name}: a cache must be float32 or float16 (pages, {PAGE}, KV, D), D a multiple of 16 up to {most}, int8 "
            f"(pages, {PAGE}, KV, D + 16) or uint8 (pages, {PAGE}, KV, D / 2 + 16), D a multiple of {BLOCK} up to 256, "
            f"got {k.dtype} {k.shape}"
        )
    if k.dtype == cupy.uint8 and width & width - 1:
        raise KernelError(f"{name}: keys of q4_0 need heads of 32, 64, 128 or 256 values, got {width}")
    kinds = HALVES if k.dtype in HALVES else _QUANTIZED if quantized else (k.dtype.type,)
    shape = *k.shape[:3], head_elements(v, width)
    if v.dtype not in kinds or v.shape != shape or not (k.flags.c_contiguous and v.flags.c_contiguous):
        raise KernelError(f"{name}: v must be a contiguous cache as k, {k.dtype} {k.shape}, got {v.dtype} {v.shape}")
    queries = HALVES if quantized else kinds
    fits = q.ndim == 3 and q.shape[2] == width and q.shape[1] % k.shape[2] == 0
    if not fits or q.dtype not in queries or not q.flags.c_contiguous:
        raise KernelError(
            f"{name}: q must be contiguous {queries[0].__name__} (T, H, {width}) with H a multiple of {k.shape[2]}, "
            f"got {q.dtype} {q.shape}"
        )
