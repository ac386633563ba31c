"""Attention of blocks on a GPU: grids and constants from shapes."""

from pathlib import Path
from typing import NamedTuple, Self

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream, check
from dflash.kernels.attention.cuda import Tiles, Workspace
from dflash.kernels.block_attention.blocks import ROWS, Blocks
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.rope.cuda import HALVES

_HERE = Path(__file__).parent
_BLOCKS = 264  # thread blocks for a sequence: two for each of the 132 multiprocessors of an H100 or H200
_QUERIES = 64  # queries of a tile
_ROOMY = 228 << 10  # bytes of shared memory of a multiprocessor of Hopper


class DeviceBlocks(NamedTuple):
    """`Blocks` on the device, read again by every launch; entries beyond the counts are ignored.

    counts: int32 (2,); rows and sequences.
    row_starts: int32 (S + 1,)
    slot, begin, length: int32 (S,); as in `Blocks`, for at most S sequences.
    """

    counts: GpuArray
    row_starts: GpuArray
    slot: GpuArray
    begin: GpuArray
    length: GpuArray

    @classmethod
    def of(cls, blocks: Blocks) -> Self:
        """Copy a description to the device."""
        counts = np.array([blocks.row_starts[-1], len(blocks.slot)], np.int32)
        return cls(*(cupy.asarray(array) for array in (counts, *blocks)))


def tiles(width: int, *, roomy: bool = False) -> Tiles:
    """Return tiles for heads of `width`: one block fits any GPU's shared memory; with `roomy`, two blocks fit 228 KiB."""
    return Tiles(64 if width <= 128 else 32, _QUERIES, 6 if roomy and width <= 128 else 4, hopper=False)


def is_roomy() -> bool:
    """Return whether the multiprocessors of the GPU have 228 KiB of shared memory."""
    return capabilities().processor_shared >= _ROOMY


def splits(kv: int, positions: int, keys: int) -> int:
    """Return the number of KV splits for up to `positions` of context and a block; a split has at least two tiles."""
    tiles_seen = -(-positions // keys) + 2
    return max(1, min(66, _BLOCKS // kv, -(-tiles_seen // 2)))


def constants(
    cut: Tiles, heads: int, kv: int, width: int, places: int, *, window: int, causal: bool
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the macros of the attention kernel and of the kernel that combines its splits."""
    parts = splits(kv, min(places, window or places), cut.keys)
    shape = {"HEAD_DIM": width, "GROUP_SIZE": heads // kv, "KV_HEADS": kv, "MAX_SPLITS": parts, "RING_SIZE": places}
    shape["WINDOW"] = window
    return {**shape, **cut.constants(), "CAUSAL": int(causal)}, {**shape, "TILE_KV": cut.keys}


class BlockAttend:
    """`dflash.kernels.block_attention.block_attend` on fixed arrays.

    q: float16 (T, H, D); queries after norm and rotation, not scaled; D is a multiple of 16 up to 256.
    k, v: float16 (T, KV, D); keys, rotated, and values of the blocks themselves.
    ring_k, ring_v: float16 (slots, C, KV, D); context of one layer, C at least 64; position p is stored at place ``p % C``.
    blocks: description of the rows. Launches read it, and the rings, before previous kernels of the stream have finished. So
        it may be written only by copies, or by kernels after which no dependent launch follows.
    window: a row sees keys less than `window` positions away, on both sides; 0 for no limit.
    causal: a row sees only itself and earlier rows of its block.
    out: float16 (T, H * D); receives the result, clamped to 65504. Float16 arrays may be given as uint16.

    Products are of float16, sums and softmax are float32; weights are rounded to float16. The bits of a row depend only on
    its own sequence. Two launches, memory-bound: ``4 * length * KV * D`` bytes of a sequence.
    """

    def __init__(
        self,
        q: GpuArray,
        k: GpuArray,
        v: GpuArray,
        ring_k: GpuArray,
        ring_v: GpuArray,
        blocks: DeviceBlocks,
        *,
        window: int,
        causal: bool,
        out: GpuArray,
        workspace: Workspace | None = None,
    ) -> None:
        if ring_k.ndim != 4 or ring_k.shape[1] < 64 or ring_k.shape[3] % 16 or not 0 < ring_k.shape[3] <= 256:
            raise KernelError(f"block_attend: a ring must be (slots, 64 or more, KV, D), D up to 256, got {ring_k.shape}")
        slots, places, kv, width = ring_k.shape
        if q.ndim != 3 or q.shape[1] % kv or q.shape[1] > _QUERIES * kv:
            raise KernelError(f"block_attend: q must be (T, H, {width}), H a multiple of {kv}, got {q.shape}")
        n, heads, _ = q.shape
        for name, array, shape in (
            ("q", q, (n, heads, width)),
            ("k", k, (n, kv, width)),
            ("v", v, (n, kv, width)),
            ("ring_k", ring_k, (slots, places, kv, width)),
            ("ring_v", ring_v, (slots, places, kv, width)),
            ("out", out, (n, heads * width)),
        ):
            check(f"block_attend: {name}", array, shape, HALVES)
        if window < 0:
            raise KernelError(f"block_attend: a window must be 0 or more positions, got {window}")
        self._rows, self._sequences, self._kv = n, len(blocks.slot), kv
        self._of_tile = _QUERIES * kv // heads
        cut, space = tiles(width, roomy=is_roomy()), workspace or Workspace()
        of_attend, of_combine = constants(cut, heads, kv, width, places, window=window, causal=causal)
        self._parts = of_attend["MAX_SPLITS"]
        space.reserve(n * heads, self._parts, width)
        made = kernel(_HERE / "block_attend.cu", "block_attend", dependent=True, **of_attend)
        sums = space.partial, space.stats
        inputs = (array.view(cupy.uint16) for array in (q, k, v, ring_k, ring_v))
        self._attend = made.bind(1, cut.threads, (*inputs, *blocks, 1, *sums), cut.shared(width))
        made = kernel(_HERE / "combine.cu", "combine", dependent=True, **of_combine)
        self._across = -(-(heads // kv) * width // 256), kv
        cut_by = blocks.counts, blocks.row_starts, blocks.begin, blocks.length
        self._combine = made.bind(1, 256, (*cut_by, *sums, out.view(cupy.uint16)))

    def __call__(self, n_rows: int, stream: Stream = None, *, n_sequences: int | None = None) -> None:
        """Run up to `n_rows` rows of up to `n_sequences` sequences; rows beyond the counts are not written."""
        assert 0 < n_rows <= self._rows
        sequences = min(n_sequences or self._sequences, self._sequences, n_rows)
        query_tiles = -(-min(ROWS, n_rows) // self._of_tile)
        self._attend(stream, grid=(self._parts, self._kv, sequences * query_tiles), query_tiles=query_tiles)
        self._combine(stream, grid=(*self._across, n_rows))
