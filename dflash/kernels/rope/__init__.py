"""Rotary position embedding: head norms, rotation and cache writes between the projections and attention."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.kv_types import head_elements
from dflash.kernels.ragged import PAGE, Ragged
from dflash.kernels.rope import cpu

Floats = NDArray[np.float32]
Cache = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int8] | NDArray[np.uint8]

_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)
_CACHES = _F32, np.dtype(np.uint16), np.dtype(np.int8), np.dtype(np.uint8)


def angles(
    positions: NDArray[np.int32], inv_freq: Floats, *, cos: Floats, sin: Floats, sections: Sequence[int] | None = None
) -> None:
    """Compute cosine and sine tables for every row, once per forward for all layers.

    Parameters
    ----------
    positions : int32 (N,) or (3, N)
        Position of each row, or its positions in time, height and width.
    inv_freq : float32 (R,)
        Radians per position of each pair, ``base ** (-j / R)``.
    cos, sin : float32 (N, R)
        Receive the tables.
    sections : sequence of int (4,), optional
        Number of pairs of each axis, interleaved; required for three positions.

    Raises
    ------
    KernelError
        If a shape or a type does not fit.

    Notes
    -----
    The angle is one float32 product, as the models were trained with; cosine and sine are exact to float32. Pair j takes
    the height if ``j % 3 == 1 and j < 3 * sections[1]``, the width if ``j % 3 == 2 and j < 3 * sections[2]``, else the time.
    """
    if positions.dtype != _I32 or positions.ndim not in (1, 2) or (positions.ndim == 2 and len(positions) != 3):
        raise KernelError(f"angles: positions must be int32 (N,) or (3, N), got {positions.dtype} {positions.shape}")
    if positions.ndim == 2 and (sections is None or len(sections) < 3):
        raise KernelError(f"angles: three positions need the sections of time, height and width, got {sections}")
    check("angles: positions", positions, positions.shape, _I32)
    check("angles: inv_freq", inv_freq, (inv_freq.size,))
    for name, table in (("cos", cos), ("sin", sin)):
        check(f"angles: {name}", table, (positions.shape[-1], inv_freq.size))
    cpu.angles(positions, inv_freq, cos=cos, sin=sin, sections=sections)


def rotate(
    query: Floats,
    key: Floats,
    value: Floats,
    q_norm: Floats | None,
    k_norm: Floats | None,
    cos: Floats,
    sin: Floats,
    rows: Ragged,
    *,
    eps: float,
    q: Floats,
    k: Cache,
    v: Cache,
    bias: Floats | None = None,
) -> None:
    """Norm and rotate queries and keys; write keys and values to the cache.

    Parameters
    ----------
    query : float32 (N, H * D) or (N, H * 2 * D)
        Projection; twice as wide if each head has D gates after its query, which are ignored.
    key, value : float32 (N, KV * D)
        Projections; D is a multiple of 16.
    q_norm, k_norm : float32 (D,) or None
        Gains of the norm of each head; None for heads without a norm.
    cos, sin : float32 (N, R)
        Tables from `angles`. Pair j consists of elements j and j + R of a head; elements from ``2 * R`` on are not rotated.
    rows : Ragged
        Description of the rows; row i of a sequence is stored at ``length + i`` of the cache.
    eps : float
        Added to the mean square.
    q : float32 (N, H, D)
        Receives the queries, not scaled.
    k, v : uint16 or float32 (pages, PAGE, KV, D), int8 (pages, PAGE, KV, D + 16), or uint8 (pages, PAGE, KV, D / 2 + 16)
        Keys and values of one layer; uint16 holds the bits of float16, rounded to nearest even. int8 is q8_0, uint8 q4_0,
        quantized as `dflash.kernels.kv_types.quantize` defines. With q4_0 keys, queries and keys are `mixed` after the
        rotation; D is a power of two then. The two types may differ.
    bias : float32 ((H + 2 * KV) * D,), optional
        Added to the projections before the norm: that of the query heads, of the key heads, of the value heads. Only
        without gates.

    Raises
    ------
    KernelError
        If a shape or a type does not fit, or an array is strided; the message names it.

    Notes
    -----
    ``x = x / sqrt(mean(x^2) + eps) * w``, then ``x[j], x[j + R] = x[j] cos - x[j + R] sin, x[j + R] cos + x[j] sin``.

    References
    ----------
    Su et al. 2021, arXiv 2104.09864.
    """
    for cache in (k, v):
        if q.ndim != 3 or cache.ndim != 4 or cache.dtype not in _CACHES or cache.shape[1] != PAGE or cache.shape[3] % 16:
            raise KernelError(
                f"rotate: q must be (N, H, D) and a cache float32 or uint16 (pages, {PAGE}, KV, D), D a multiple of 16, "
                f"int8 (pages, {PAGE}, KV, D + 16) or uint8 (pages, {PAGE}, KV, D / 2 + 16), got {q.shape} and "
                f"{cache.dtype} {cache.shape}"
            )
    n, heads, width = q.shape
    if n != rows.row_starts[-1]:
        raise KernelError(f"rotate: {n} rows of q for a batch of {rows.row_starts[-1]}")
    if 2 * cos.shape[-1] > width:
        raise KernelError(f"rotate: cos rotates {2 * cos.shape[-1]} elements, but heads have {width}")
    gated = 2 if query.shape[-1] == 2 * heads * width else 1
    check("rotate: query", query, (n, heads * gated * width))
    check("rotate: key", key, (n, k.shape[2] * width))
    check("rotate: value", value, (n, k.shape[2] * width))
    for name, gain in (("q_norm", q_norm), ("k_norm", k_norm)):
        if gain is not None:
            check(f"rotate: {name}", gain, (width,))
    check_bias("rotate", bias, heads, k.shape[2], width, gated=gated == 2)
    check("rotate: cos", cos, (n, cos.shape[-1]))
    check("rotate: sin", sin, cos.shape)
    check("rotate: q", q, q.shape)
    for name, cache in (("k", k), ("v", v)):
        check(f"rotate: {name}", cache, (*k.shape[:3], head_elements(cache, width)), cache.dtype)
    _check_mixing(k.dtype == np.uint8, width)
    cpu.rotate(query, key, value, q_norm, k_norm, cos, sin, rows, eps=eps, q=q, k=k, v=v, bias=bias)


def turn(x: Floats, norm: Floats, cos: Floats, sin: Floats, *, eps: float, mixes: bool = False) -> None:
    """Norm and rotate heads in place: `rotate` without a cache.

    Parameters
    ----------
    x : float32 (N, H, D)
        Heads of each row; changed in place. D is a multiple of 16.
    norm : float32 (D,)
        Gain of the norm of each head.
    cos, sin : float32 (N, R)
        Tables from `angles`. Pair j consists of elements j and j + R of a head; elements from ``2 * R`` on are not rotated.
    eps : float
        Added to the mean square.
    mixes : bool
        Mix the heads at last, as queries for keys of q4_0.

    Raises
    ------
    KernelError
        If a shape or a type does not fit, or an array is strided; the message names it.

    Notes
    -----
    The formula and the bits of `rotate`. Moves ``8 * N * H * D`` bytes.
    """
    if x.ndim != 3 or x.shape[2] % 16:
        raise KernelError(f"turn: x must be float32 (N, H, D), D a multiple of 16, got {x.dtype} {x.shape}")
    n, _, width = x.shape
    if 2 * cos.shape[-1] > width:
        raise KernelError(f"turn: cos rotates {2 * cos.shape[-1]} elements, but heads have {width}")
    check("turn: x", x, x.shape)
    check("turn: norm", norm, (width,))
    check("turn: cos", cos, (n, cos.shape[-1]))
    check("turn: sin", sin, cos.shape)
    _check_mixing(mixes, width)
    cpu.turn(x, norm, cos, sin, eps=eps, mixes=mixes)


def check_bias(name: str, bias: Any | None, heads: int, kv: int, width: int, *, gated: bool, dtype: Any = _F32) -> None:
    """Raise a `KernelError` if an array is not the bias of query, key and value heads, or the queries have gates."""
    if bias is None:
        return
    if gated:
        raise KernelError(f"{name}: bias: queries with gates have none, got {bias.shape}")
    check(f"{name}: bias", bias, ((heads + 2 * kv) * width,), dtype)


def _check_mixing(mixes: bool, width: int) -> None:
    if mixes and width & width - 1:
        raise KernelError(f"rotate: keys of q4_0 need heads of 32, 64, 128 or 256 values, got {width}")
