"""Guesses on a GPU: grown, laid into a batch, walked. Arrays are fixed, and what they hold is read as a launch runs."""

from pathlib import Path
from typing import Any

from dflash.kernels.device_arrays import DeviceArrays
from dflash.kernels.device_batch import DeviceBatch
from dflash.kernels.jit import kernel

MOST = 64
"""Nodes of a tree that there is room for."""

SEQUENCES = 16
"""Most sequences of a walk."""

OUTLINE = 4
"""Numbers of an outline: first row, positions, candidates of each, nodes."""

_HERE = Path(__file__).parent


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


class Grow:
    """Trees of candidates, as `reference.grow` defines them.

    Parameters
    ----------
    ids : int32 (R, K)
        Candidates, on the device as all arrays.
    scores : float32 (R, K), or (R, K, K) if a score depends on the candidate above
    outlines : int32 (S, OUTLINE)
    out : DeviceArrays
        See `guesses`.
    """

    def __init__(self, ids: Any, scores: Any, outlines: Any, out: DeviceArrays) -> None:
        made = kernel(_HERE / "grow.cu", "grow", dependent=True, POOL=ids.shape[1], EDGES=int(scores.ndim == 3))
        self._run = made.bind(1, 32, (ids, scores, outlines, out.tokens, out.parents, out.depths, out.grown))

    def __call__(self, n_sequences: int, stream: Any = None) -> None:
        """Grow one for each sequence."""
        self._run(stream, grid=n_sequences)


class Plant:
    """Trees as rows of a batch, under the root of each of its sequences.

    Parameters
    ----------
    grown : DeviceArrays
        See `guesses`; one for each sequence of the batch, in its order.
    batch : DeviceBatch
        With as many rows for each as are to be planted.
    """

    def __init__(self, grown: DeviceArrays, batch: DeviceBatch) -> None:
        where = batch.first, batch.length, batch.tokens, batch.parent, batch.depth, batch.position
        self._run = kernel(_HERE / "plant.cu", "plant").bind(1, MOST, (grown.tokens, grown.parents, grown.depths, *where))

    def __call__(self, n_sequences: int, stream: Any = None) -> None:
        """Overwrite tokens, parents, depths and positions of the rows beside the roots."""
        self._run(stream, grid=n_sequences)


class Walk:
    """The way of the drawn tokens, and what a draft reads next.

    Parameters
    ----------
    batch : DeviceBatch
        Of the pass that was drawn from.
    drawn : int32 (R,)
        Its tokens.
    context : DeviceArrays
        counts (2,), first (S + 1,), sequence, position, row (MOST,), length (S,): rows of the pass that become context.
    block : DeviceArrays
        begin (S,) is read; tokens, position (S * block,), length, seen (S,) are written.
    out : DeviceArrays
        anchors and lengths of `guesses`.
    rows, places, mask : int
        Rows of a block, places of a ring, token of the rows to be guessed.
    """

    def __init__(
        self,
        batch: DeviceBatch,
        drawn: Any,
        context: DeviceArrays,
        block: DeviceArrays,
        out: DeviceArrays,
        *,
        rows: int,
        places: int,
        mask: int,
    ) -> None:
        made = kernel(_HERE / "walk.cu", "walk", BLOCK=rows, PLACES=places, MASK=mask)
        of_pass = batch.counts, batch.first, batch.length, batch.tokens, batch.parent, drawn
        of_context = (getattr(context, name) for name in ("counts", "first", "sequence", "length", "position", "row"))
        of_block = block.tokens, block.position, block.length, block.seen
        self._run = made.bind(1, 32 * SEQUENCES, (*of_pass, block.begin, *of_context, *of_block, out.anchors, out.lengths))

    def __call__(self, stream: Any = None) -> None:
        """Walk for every sequence of the batch."""
        self._run(stream)


class Features:
    """Rows of some arrays side by side, as halves.

    Parameters
    ----------
    sources : uint64 (F,)
        Addresses of float32 (T, D) arrays.
    counts, row : int32
        How many rows, and which.
    width : int
        D.
    out : float16 (N, F * D)
    """

    def __init__(self, sources: Any, counts: Any, row: Any, width: int, out: Any) -> None:
        self._n = sources.size
        made = kernel(_HERE / "features.cu", "features", dependent=True, DIM=width)
        self._run = made.bind(1, 256, (sources, counts, row, out))

    def __call__(self, n_rows: int, stream: Any = None) -> None:
        """Copy at most the first `n_rows` rows."""
        self._run(stream, grid=(self._n, n_rows))
