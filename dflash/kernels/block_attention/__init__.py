"""Attention of a draft model's blocks: over a ring of context from the target model, and over the block itself."""

import numpy as np
from numpy.typing import NDArray

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.block_attention import cpu
from dflash.kernels.block_attention.blocks import ROWS, Blocks

__all__ = ["ROWS", "Blocks", "append", "block_attend"]

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Ring = NDArray[np.float32] | NDArray[np.uint16]

_F32, _I32 = np.dtype(np.float32), np.dtype(np.int32)
_RINGS = _F32, np.dtype(np.uint16)


def block_attend(
    q: Floats, k: Floats, v: Floats, ring_k: Ring, ring_v: Ring, blocks: Blocks, *, window: int, causal: bool, out: Floats
) -> None:
    """Let every row of a block attend to the context of its sequence and to the block.

    Parameters
    ----------
    q : float32 (N, H, D)
        Queries after norm and rotation, not scaled; D is a multiple of 16.
    k, v : float32 (N, KV, D)
        Keys, rotated, and values of the blocks themselves; head h reads head ``h // (H / KV)``.
    ring_k, ring_v : uint16 or float32 (slots, C, KV, D)
        Context of one layer; uint16 holds the bits of float16. Position p is stored at place ``p % C``.
    blocks : Blocks
        Description of the rows.
    window : int
        A row sees keys less than `window` positions away, on both sides; 0 for no limit.
    causal : bool
        A row sees only itself and earlier rows of its block.
    out : float32 (N, H * D)
        Receives the result.

    Raises
    ------
    KernelError
        If a shape, a type or a number does not fit, or an array is strided; the message names it.

    Notes
    -----
    ``out = softmax(q k^T / sqrt(D)) v``. A row has the same bits whatever other sequences are in the call, on any number of
    threads. Reads ``2 * length * KV * D`` elements of the rings of a sequence: memory-bound.

    References
    ----------
    Chen, Liang, Liu 2026, arXiv 2602.06036.
    """
    _check_rings(ring_k, ring_v)
    slots, _, kv, width = ring_k.shape
    if q.ndim != 3 or q.shape[2] != width or q.shape[1] % kv:
        raise KernelError(f"block_attend: q must be float32 (N, H, {width}), H a multiple of {kv}, got {q.dtype} {q.shape}")
    n, heads, _ = q.shape
    for name, array, shape in (
        ("q", q, q.shape),
        ("k", k, (n, kv, width)),
        ("v", v, (n, kv, width)),
        ("out", out, (n, heads * width)),
    ):
        check(f"block_attend: {name}", array, shape)
    if window < 0:
        raise KernelError(f"block_attend: a window must be 0 or more positions, got {window}")
    _check_blocks(blocks, n, slots)
    cpu.block_attend(q, k, v, ring_k, ring_v, blocks, window=window, causal=causal, out=out)


def append(k: Floats, v: Floats, ring_k: Ring, ring_v: Ring, *, slots: Ints, positions: Ints) -> None:
    """Write the keys and values of context positions to rings.

    Parameters
    ----------
    k, v : float32 (n, KV, D)
        Rows of any sequences, keys rotated.
    ring_k, ring_v : uint16 or float32 (slots, C, KV, D)
        Context of one layer, changed in place; float16 is rounded to nearest even.
    slots : int32 (n,)
        Ring of each row; a negative number skips the row.
    positions : int32 (n,)
        Position of each row, 0 or more, stored at place ``position % C``. Rows that are not skipped have distinct places.

    Raises
    ------
    KernelError
        If a shape, a type or a number does not fit, or an array is strided; the message names it.
    """
    _check_rings(ring_k, ring_v)
    n, room = len(k), ring_k.shape[0]
    for name, array in (("k", k), ("v", v)):
        check(f"append: {name}", array, (n, *ring_k.shape[2:]))
    for name, numbers in (("slots", slots), ("positions", positions)):
        check(f"append: {name}", numbers, (n,), _I32)
    if n and (slots.max() >= room or positions[slots >= 0].min(initial=0) < 0):
        raise KernelError(f"append: slots must be below {room} and positions not negative, got {slots} and {positions}")
    cpu.append(k, v, ring_k, ring_v, slots=slots, positions=positions)


def _check_blocks(blocks: Blocks, n: int, slots: int) -> None:
    count = len(blocks.slot)
    for name, size in (("row_starts", count + 1), ("slot", count), ("begin", count), ("length", count)):
        check(f"block_attend: blocks.{name}", getattr(blocks, name), (size,), _I32)
    rows = np.diff(blocks.row_starts)
    if blocks.row_starts[0] or blocks.row_starts[-1] != n or (rows < 0).any() or (rows > ROWS).any():
        raise KernelError(f"block_attend: blocks of at most {ROWS} rows must cover {n} rows, got {blocks.row_starts}")
    if (blocks.slot < 0).any() or (blocks.slot >= slots).any():
        raise KernelError(f"block_attend: slots must be 0 to {slots - 1}, got {blocks.slot}")
    if (blocks.begin < 0).any() or (blocks.begin > blocks.length).any():
        raise KernelError(f"block_attend: begin must be 0 to length, got {blocks.begin} for {blocks.length}")


def _check_rings(k: Ring, v: Ring) -> None:
    if k.dtype not in _RINGS or k.ndim != 4 or not k.shape[1] or k.shape[3] % 16:
        raise KernelError(
            f"block_attend: a ring must be float32 or uint16 (slots, C, KV, D), D a multiple of 16, got {k.dtype} {k.shape}"
        )
    if v.dtype != k.dtype or v.shape != k.shape:
        raise KernelError(f"block_attend: ring_v is {v.dtype} {v.shape}, ring_k {k.dtype} {k.shape}")
    if not (k.flags.c_contiguous and v.flags.c_contiguous):
        raise KernelError("block_attend: a ring is strided")
