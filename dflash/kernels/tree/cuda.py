"""Draft trees on a GPU: build, write into a batch, accept. Arrays are fixed; each launch reads their current values."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.kernels.arrays import GpuArray, Stream, check
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

MOST = 64
"""Capacity of a tree in nodes."""

SEQUENCES = 16
"""Largest number of sequences of an `AcceptPath` launch."""

OUTLINE = 4
"""Integers of an outline: first row, positions, candidates of a position, nodes."""

_HERE = Path(__file__).parent
_ENDLESS = 1 << 30  # places of a ring that never wraps


def draft_arrays(sequences: int) -> DeviceArrays:
    """Allocate a draft tree for each sequence.

    Returns: tokens, parents, depths int32 (S, MOST): nodes; parents are -1 for children of the root, whose depth is 0. grown
        (S,): number of nodes built from candidates. anchors, lengths (S,): the root token, and the number of tokens before
        it.
    """
    trees, each = (sequences, MOST), (sequences,)
    return DeviceArrays(tokens=trees, parents=trees, depths=trees, grown=each, anchors=each, lengths=each)


class BuildTree(RowLaunch):
    """Builds draft trees of the first sequences from candidates, as `reference.grow` defines them.

    ids: int32 (R, K); candidates; all arrays are on the device.
    scores: float32 (R, K), or (R, K, K) if a score depends on the candidate above
    outlines: int32 (S, OUTLINE)
    out: receives tokens, parents, depths and grown of the trees.
    apart: rows from one position of a sequence to the next.
    targets: int32 (V,), optional; target token id of each draft token id.
    reach: int32 (S,), optional; number of draft positions of each sequence, if it may be less than in the outline.
    """

    def __init__(
        self,
        ids: GpuArray,
        scores: GpuArray,
        outlines: GpuArray,
        out: DeviceArrays,
        *,
        apart: int = 1,
        targets: GpuArray = None,
        reach: GpuArray = None,
    ) -> None:
        made = kernel(_HERE / "build.cu", "build", dependent=True, POOL=ids.shape[1], EDGES=int(scores.ndim == 3))
        where = out.tokens, out.parents, out.depths, out.grown
        super().__init__(made.bind(1, 32, (ids, scores, outlines, apart, targets, reach, *where)))


class WriteDraft:
    """Writes draft trees to the rows of a batch, below the root rows of its sequences.

    batch: batch; each sequence has a root row and one row for every node to be written.
    """

    def __init__(self, grown: DeviceArrays, batch: DeviceBatch) -> None:
        where = batch.row_starts, batch.length, batch.tokens, batch.parent, batch.depth, batch.position
        trees = grown.tokens, grown.parents, grown.depths
        self._run = kernel(_HERE / "write_draft.cu", "write_draft").bind(1, MOST, (*trees, 0, 0, *where))

    def __call__(self, order: Sequence[int], stream: Stream = None) -> None:
        """Overwrite tokens, parents, depths and positions of all rows except the roots.

        order: sequence of the batch for each tree; -1 for none.
        """
        self._run(stream, grid=len(order), **_words(order))


class AcceptPath:
    """Accepts the path of sampled tokens through the draft trees, and prepares the input of the next draft.

    drawn: int32 (R,); token sampled from each row of the pass.
    context: receives the accepted rows of the pass; see `context_shapes`.
    block: input of the next blocks, for block drafters: begin (S,) is read; tokens, position (S * rows,), length and seen
        (S,) are written.
    position: int32 (rows, SEQUENCES); without blocks: receives the positions of the next draft rows.
    out: receives anchors and lengths of the draft trees.
    rows, places, mask: rows of a block, or draft positions without blocks; places of a ring; token of draft rows (mask
        token).
    """

    def __init__(
        self,
        batch: DeviceBatch,
        drawn: GpuArray,
        context: DeviceArrays,
        out: DeviceArrays,
        *,
        rows: int,
        places: int = _ENDLESS,
        mask: int = 0,
        block: DeviceArrays | None = None,
        position: GpuArray = None,
    ) -> None:
        constants: dict[str, Any] = {"ROWS": rows, "RING_SIZE": places, "MASK_TOKEN": mask, "BLOCKS": int(block is not None)}
        made = kernel(_HERE / "accept_path.cu", "accept_path", **constants)
        of_pass = 0, 0, 0, 0, 0, batch.row_starts, batch.length, batch.tokens, batch.parent, drawn
        order = "counts", "row_starts", "sequence", "length", "position", "row", "token", "parent", "depth", "last"
        of_context = (getattr(context, name) for name in order)
        if block is None:
            of_next = None, None, position, None, None
        else:
            of_next = block.begin, block.tokens, block.position, block.length, block.seen
        self._run = made.bind(1, 32 * SEQUENCES, (*of_pass, *of_context, *of_next, out.anchors, out.lengths))

    def __call__(self, order: Sequence[int], taken: Sequence[int] = (), stream: Stream = None) -> None:
        """Run for these sequences of the batch, at most `SEQUENCES`; results are in their order.

        taken: number of tokens of each draft, a chain, that are accepted whatever is sampled; -1, or none at all, to accept
            those that are sampled.
        """
        taken = taken or [-1] * len(order)
        self._run(stream, n_sequences=len(order), **_words(order), **_words(taken, "taken_"))


def _words(order: Sequence[int], prefix: str = "") -> dict[str, int]:
    """Pack numbers of sequences into the two 64-bit words of slot_order.cuh."""
    filled = bytes(s & 255 for s in order).ljust(SEQUENCES, b"\0")
    return {f"{prefix}{name}": int.from_bytes(filled[at : at + 8], "little") for name, at in (("low", 0), ("high", 8))}


def context_shapes() -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays in which `AcceptPath` describes the accepted rows.

    Returns: counts (2,): rows and sequences. row_starts (S + 1,): first row of each sequence. length (S,): ring position of
        its first row. last (S,): its last row. For each row: sequence, position, row (its number in the pass), token (the
        token that follows it), parent and depth.
    """
    each = dict.fromkeys(("sequence", "position", "row", "token", "parent", "depth"), (MOST,))
    return {"counts": (2,), "row_starts": (SEQUENCES + 1,), "length": (SEQUENCES,), "last": (SEQUENCES,), **each}


class Features(RowLaunch):
    """Gathers rows of several arrays side by side, as float16 or float32.

    sources: uint64 (F,); addresses of float32 (T, D) arrays.
    counts: ``counts[which]`` is the number of rows to gather.
    row: numbers of the rows to gather.
    out: float16 or float32 (N, F * D); receives the rows.
    """

    def __init__(
        self, sources: GpuArray, counts: GpuArray, row: GpuArray, width: int, out: GpuArray, *, which: int = 0
    ) -> None:
        made = kernel(_HERE / "features.cu", "features", dependent=True, MODEL_DIM=width, TO_HALF=int(out.itemsize == 2))
        super().__init__(made.bind(1, 256, (sources, counts, which, row, out.view(np.uint8))), sources.size)


class GatherRows:
    """Gathers rows from anywhere, by their addresses.

    addresses: uint64 (N,); addresses of the rows, on the device.
    width: row size D.
    """

    def __init__(self, addresses: GpuArray, width: int) -> None:
        made = kernel(_HERE / "gather_rows.cu", "gather_rows", dependent=True, MODEL_DIM=width)
        self._run, self._width = made.bind(1, 256, (addresses, 0)), width

    def __call__(self, out: GpuArray, stream: Stream = None) -> None:
        """Copy the rows at the first addresses to `out` float32 (n, D)."""
        check("gather_rows: out", out, (len(out), self._width))
        self._run(stream, grid=(len(out),), out=out.data.ptr)


class StashRows:
    """Copies rows of several arrays to a buffer.

    sources: uint64 (F,); addresses of float32 (T, D) arrays.
    out: float32 (F, N, D); buffer.
    """

    def __init__(self, sources: GpuArray, out: GpuArray) -> None:
        made = kernel(_HERE / "stash_rows.cu", "stash_rows", dependent=True, MODEL_DIM=out.shape[2])
        self._n, self._run = len(out), made.bind(1, 256, (sources, 0, out, out.shape[1], 0))

    def __call__(self, first: int, n_rows: int, at: int, stream: Stream = None) -> None:
        """Copy `n_rows` rows, from row `first` of the sources to row `at` of the buffer."""
        self._run(stream, grid=(self._n, n_rows), first=first, at=at)


class GatherTop1:
    """Copies the first candidate of some rows to the tokens of the next pass.

    ids: candidates, most probable first; starts at the first row to copy.
    apart: distance between consecutive rows in elements.
    out: int32 (R,); receives the tokens.
    targets: int32 (V,), optional; target token id of each draft token id.
    """

    def __init__(self, ids: GpuArray, apart: int, out: GpuArray, *, targets: GpuArray = None) -> None:
        made = kernel(_HERE / "gather_top1.cu", "gather_top1", dependent=True)
        self._run = made.bind(1, MOST, (ids, apart, targets, out, len(out)))

    def __call__(self, stream: Stream = None) -> None:
        """Copy the tokens of all rows."""
        self._run(stream)
