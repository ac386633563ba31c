"""Attention of a ragged batch over a paged KV cache."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.attention import cpu
from dflash.kernels.kv_types import head_size
from dflash.kernels.ragged import PAGE, Ragged

Floats = NDArray[np.float32]
Cache = NDArray[np.float32] | NDArray[np.uint16] | NDArray[np.int8] | NDArray[np.uint8]

_F32 = np.dtype(np.float32)
_CACHES = _F32, np.dtype(np.uint16), np.dtype(np.int8), np.dtype(np.uint8)


def attend(q: Floats, k: Cache, v: Cache, rows: Ragged, *, out: Floats, gate: Floats | None = None, window: int = 0) -> None:
    """Let every row attend to the committed tokens of its sequence, to its ancestors and to itself.

    Parameters
    ----------
    q : float32 (N, H, D)
        Queries after norm and rotation, not scaled; D is a multiple of 16.
    k, v : uint16 or float32 (pages, PAGE, KV, D), int8 (pages, PAGE, KV, D + 16), or uint8 (pages, PAGE, KV, D / 2 + 16)
        Keys and values of one layer; uint16 holds the bits of float16, int8 is q8_0, uint8 q4_0, for which queries and keys
        are mixed (`dflash.kernels.kv_types`). The two types may differ. Query head h reads head ``h // (H / KV)``. The keys
        and values of the rows are in it already.
    rows : Ragged
        Description of the rows.
    out : float32 (N, H * D)
        Receives the result.
    gate : float32 (N, H * 2 * D), optional
        For each head D ignored values (the query of the projection), then D gates.
    window : int
        Tokens that a row sees at most: itself and the ``window - 1`` before it. 0 for all.

    Raises
    ------
    KernelError
        If a shape or a type does not fit, the window is negative, or an array is strided; the message names the argument.

    Notes
    -----
    ``out = softmax(q k^T / sqrt(D)) v``, times ``sigmoid(gate)`` if given. Sums run by position within a page of PAGE
    positions, then page by page. So a row has the same bits alone, in a chain, in a tree, in a prefill of any chunks, and on
    any number of threads. A quantized cache gives the bits of a float16 cache with the same values. Memory-bound for few
    rows: ``2 * length * KV * D`` elements of the cache, or those of the pages that the window touches.

    References
    ----------
    Dao, Haziza, Massa, Sizov 2023, Flash-Decoding; Kwon et al. 2023, arXiv 2309.06180.
    """
    _check_cache(k, v)
    if q.dtype != _F32 or q.ndim != 3 or q.shape[2] != head_size(k) or q.shape[1] % k.shape[2]:
        raise KernelError(
            f"attend: q must be float32 (N, H, {head_size(k)}) with H a multiple of {k.shape[2]}, got {q.dtype} {q.shape}"
        )
    n, heads, width = q.shape
    if n != rows.row_starts[-1]:
        raise KernelError(f"attend: {n} rows of q for a batch of {rows.row_starts[-1]}")
    check("attend: out", out, (n, heads * width))
    if gate is not None:
        check("attend: gate", gate, (n, heads * 2 * width))
    if not q.flags.c_contiguous:
        raise KernelError("attend: q is strided")
    if window < 0:
        raise KernelError(f"attend: window is {window}, must be at least 0")
    cpu.attend(q, k, v, rows, out=out, gate=gate, window=window)


def compact(k: Cache, v: Cache, *, pages: NDArray[np.int32], length: int, path: Sequence[int]) -> None:
    """Move the keys and values of an accepted path to the positions after the committed tokens.

    Parameters
    ----------
    k, v : uint16, float32, int8 or uint8 (pages, PAGE, KV, D) or (layers, pages, PAGE, KV, D)
        Caches as for `attend`, changed in place; quantized ones move as they are.
    pages : int32 (P,)
        Pages of the sequence: one row of ``Ragged.pages``.
    length : int
        Committed tokens before the path.
    path : sequence of int (n,)
        Accepted rows, root first; row i is stored at ``length + i``.

    Raises
    ------
    KernelError
        If a shape or a type does not fit, or an array is strided.

    Notes
    -----
    Moves ``4 * KV * D`` elements for each row that is not at its final position; a chain costs nothing.
    """
    _check_cache(k, v)
    cpu.compact(k, v, pages=pages, length=length, path=path)


def _check_cache(k: Cache, v: Cache) -> None:
    for cache in (k, v):
        if cache.dtype not in _CACHES or cache.ndim not in (4, 5) or cache.shape[-3] != PAGE or cache.shape[-1] % 16:
            raise KernelError(
                f"attend: a cache must be float32 or uint16 (pages, {PAGE}, KV, D), D a multiple of 16, or int8 "
                f"(pages, {PAGE}, KV, D + 16) or uint8 (pages, {PAGE}, KV, D / 2 + 16), got {cache.dtype} {cache.shape}"
            )
    if v.shape[:-1] != k.shape[:-1] or head_size(v) != head_size(k):
        raise KernelError(f"attend: v is {v.dtype} {v.shape}, k {k.dtype} {k.shape}")
    if not (k.flags.c_contiguous and v.flags.c_contiguous):
        raise KernelError("attend: a cache is strided")
