"""Guesses on a GPU: grown, laid into a batch, walked. Arrays are fixed, and what they hold is read as a launch runs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.gpu.jit import kernel

MOST = 64
"""Nodes of a tree that there is room for."""

SEQUENCES = 16
"""Most sequences of a walk."""

OUTLINE = 4
"""Numbers of an outline: first row, positions, candidates of each, nodes."""

_HERE = Path(__file__).parent
_ENDLESS = 1 << 30


def guesses(sequences: int) -> DeviceArrays:
    """Room for a tree of each sequence.

    Returns
    -------
    DeviceArrays
        tokens, parents, depths int32 (S, MOST): parents are -1 under the root, whose depth is 0. grown (S,): nodes that
        are of candidates. anchors, lengths (S,): the token under which it grows, and how many are before that.
    """
    trees, each = (sequences, MOST), (sequences,)
    return DeviceArrays(tokens=trees, parents=trees, depths=trees, grown=each, anchors=each, lengths=each)


class BuildTree:
    """Trees of candidates, as `reference.grow` defines them.

    Parameters
    ----------
    ids : int32 (R, K)
        Candidates, on the device as all arrays.
    scores : float32 (R, K), or (R, K, K) if a score depends on the candidate above
    outlines : int32 (S, OUTLINE)
    out : DeviceArrays
        See `guesses`.
    apart : int
        Rows from one position of a sequence to the next.
    targets : int32 (V,), optional
        What is told in place of each token.
    reach : int32 (S,), optional
        How many positions of each sequence are guessed, if that may be fewer than its outline says.
    """

    def __init__(
        self,
        ids: Any,
        scores: Any,
        outlines: Any,
        out: DeviceArrays,
        *,
        apart: int = 1,
        targets: Any = None,
        reach: Any = None,
    ) -> None:
        made = kernel(_HERE / "build.cu", "build", dependent=True, POOL=ids.shape[1], EDGES=int(scores.ndim == 3))
        where = out.tokens, out.parents, out.depths, out.grown
        self._run = made.bind(1, 32, (ids, scores, outlines, apart, targets, reach, *where))

    def __call__(self, n_sequences: int, stream: Any = None) -> None:
        """Grow one for each sequence."""
        self._run(stream, grid=n_sequences)


class WriteDraft:
    """Trees as rows of a batch, under the roots of some of its sequences.

    Parameters
    ----------
    grown : DeviceArrays
        See `guesses`.
    batch : DeviceBatch
        With as many rows for each as are to be planted.
    """

    def __init__(self, grown: DeviceArrays, batch: DeviceBatch) -> None:
        where = batch.first, batch.length, batch.tokens, batch.parent, batch.depth, batch.position
        trees = grown.tokens, grown.parents, grown.depths
        self._run = kernel(_HERE / "write_draft.cu", "write_draft").bind(1, MOST, (*trees, 0, 0, *where))

    def __call__(self, order: Sequence[int], stream: Any = None) -> None:
        """Overwrite tokens, parents, depths and positions of the rows beside the roots.

        Parameters
        ----------
        order : sequence of int
            The sequence of the batch that each tree is of; -1 for none.
        stream : optional
        """
        self._run(stream, grid=len(order), **_words(order))


class AcceptPath:
    """The way of the drawn tokens of some sequences, and what guesses next.

    Parameters
    ----------
    batch : DeviceBatch
        Of the pass that was drawn from.
    drawn : int32 (R,)
        Its tokens.
    context : DeviceArrays
        See `context_shapes`: rows of the pass that are text now.
    block : DeviceArrays or None
        Where blocks come next: begin (S,) is read; tokens, position (S * rows,), length, seen (S,) are written.
    position : int32 (rows, SEQUENCES)
        Without blocks, where the tokens to be guessed are read.
    out : DeviceArrays
        anchors and lengths of `guesses`.
    rows, places, mask : int
        Rows of a block or positions, places of a ring, token of the rows to be guessed.
    """

    def __init__(
        self,
        batch: DeviceBatch,
        drawn: Any,
        context: DeviceArrays,
        out: DeviceArrays,
        *,
        rows: int,
        places: int = _ENDLESS,
        mask: int = 0,
        block: DeviceArrays | None = None,
        position: Any = None,
    ) -> None:
        constants = {"ROWS": rows, "RING_SIZE": places, "MASK_TOKEN": mask, "BLOCKS": int(block is not None)}
        made = kernel(_HERE / "accept_path.cu", "accept_path", **constants)
        of_pass = 0, 0, 0, batch.first, batch.length, batch.tokens, batch.parent, drawn
        order = "counts", "first", "sequence", "length", "position", "row", "token", "parent", "depth", "last"
        of_context = (getattr(context, name) for name in order)
        if block is None:
            of_next = None, None, position, None, None
        else:
            of_next = block.begin, block.tokens, block.position, block.length, block.seen
        self._run = made.bind(1, 32 * SEQUENCES, (*of_pass, *of_context, *of_next, out.anchors, out.lengths))

    def __call__(self, order: Sequence[int], stream: Any = None) -> None:
        """Walk for these sequences of the batch, at most `SEQUENCES`; what is written is in their order."""
        self._run(stream, n_sequences=len(order), **_words(order))


def _words(order: Sequence[int]) -> dict[str, int]:
    """An order as the numbers of slot_order.cuh."""
    filled = bytes(s & 255 for s in order).ljust(SEQUENCES, b"\0")
    return {name: int.from_bytes(filled[at : at + 8], "little") for name, at in (("low", 0), ("high", 8))}


def context_shapes() -> dict[str, tuple[int, ...]]:
    """What a walk writes of the rows that are text now.

    Returns
    -------
    dict of str to tuple of int
        counts (2,), first (S + 1,), length (S,), the place of the first row of each sequence, last (S,), its last row; of
        each row sequence, position, row, which of the pass it is, token, the one after it, parent and depth.
    """
    each = dict.fromkeys(("sequence", "position", "row", "token", "parent", "depth"), (MOST,))
    return {"counts": (2,), "first": (SEQUENCES + 1,), "length": (SEQUENCES,), "last": (SEQUENCES,), **each}


class Features:
    """Rows of some arrays side by side, as halves or as they are.

    Parameters
    ----------
    sources : uint64 (F,)
        Addresses of float32 (T, D) arrays.
    counts : int32
        ``counts[which]`` is how many rows there are.
    row : int32
        Which they are.
    width : int
        D.
    out : float16 or float32 (N, F * D)
    which : int
    """

    def __init__(self, sources: Any, counts: Any, row: Any, width: int, out: Any, *, which: int = 0) -> None:
        self._n = sources.size
        made = kernel(_HERE / "features.cu", "features", dependent=True, MODEL_DIM=width, TO_HALF=int(out.itemsize == 2))
        self._run = made.bind(1, 256, (sources, counts, which, row, out.view(np.uint8)))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Copy at most the first `n_rows` rows."""
        self._run(stream, grid=(self._n, n_rows))


class StashRows:
    """Rows of some arrays put aside.

    Parameters
    ----------
    sources : uint64 (F,)
        Addresses of float32 (T, D) arrays.
    out : float32 (F, N, D)
    """

    def __init__(self, sources: Any, out: Any) -> None:
        made = kernel(_HERE / "stash_rows.cu", "stash_rows", dependent=True, MODEL_DIM=out.shape[2])
        self._n, self._run = len(out), made.bind(1, 256, (sources, 0, out, out.shape[1], 0))

    def __call__(self, first: int, n_rows: int, at: int, stream: Any = None) -> None:
        """Copy rows from `first` on to those from `at` on."""
        self._run(stream, grid=(self._n, n_rows), first=first, at=at)


class GatherTop1:
    """The first number of some rows as the tokens that are read next.

    Parameters
    ----------
    ids : int32
        Candidates, likeliest first; the first row begins where it does.
    apart : int
        Numbers from one row to the next.
    out : int32 (R,)
    """

    def __init__(self, ids: Any, apart: int, out: Any) -> None:
        self._run = kernel(_HERE / "gather_top1.cu", "gather_top1", dependent=True).bind(
            1, MOST, (ids, apart, out, len(out))
        )

    def __call__(self, stream: Any = None) -> None:
        """Copy them all."""
        self._run(stream)
