"""Context of a draft model on a GPU: features of the target become keys and values of every layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.formats.cuda import PackedWeight
from dflash.kernels.gpu import device
from dflash.kernels.gpu.buffers import DeviceArrays
from dflash.kernels.linear.cuda import BUCKETS, DecodeLinear
from dflash.kernels.linear.cuda_prefill import PrefillLinear, UnpackScratch
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PAGE, PENDING
from dflash.kernels.rope.cuda import Angles, Append
from dflash.kernels.tree.cuda import SEQUENCES, Features, context_shapes
from dflash.model.cuda.draft.rings import DeviceRings, rows_of
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.ops import spare_bytes
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.context import Rows
from dflash.model.draft.state import DraftState
from dflash.model.rope import inverse_frequencies

Piece = tuple[DraftState, NDArray[np.int32]]
"""State of a sequence, and the rows of the features to read next."""

_MANY, _MANY_SEQUENCES = 512, 64
"""Most rows and sequences of a pass that reads many."""

_UNPACKED = 1024
"""Rows of a weight that it unpacks at a time."""


class _Projections(NamedTuple):
    """Weights that make keys and values of features, on the device.

    stacks: projections of one type as one weight, with their names.
    """

    fuse: PackedWeight
    norm: GpuArray
    stacks: list[tuple[PackedWeight, list[str]]]
    key_norms: GpuArray


def _names(config: DraftConfig) -> tuple[list[str], list[str]]:
    """Return the names of the projections of keys and of values."""
    keys, values = ([f"blk.{i}.attn_{part}.weight" for i in range(config.n_layers)] for part in "kv")
    return keys, values


class _Launches:
    """Launches that append up to `rows` positions of at most `sequences` sequences to the rings.

    ``c = norm(fc [features])``; for every layer ``k = rope(norm(Wk c))`` at the position, ``v = Wv c``.

    arrays: inputs: counts, row_starts, sequence, position, row, length, ``pages`` (S, P) of the rings, and ``sources``,
        addresses of features.
    multiply: makes a launch of projections; empty: allocates arrays whose content lasts as long as the launches.
    """

    def __init__(
        self,
        projections: _Projections,
        config: DraftConfig,
        rings: DeviceRings,
        arrays: DeviceArrays,
        *,
        rows: int,
        multiply: Callable[..., Any],
        empty: Callable[..., Any],
    ) -> None:
        a, width, row = arrays, config.width, config.kv_heads * config.head_size
        self.arrays, self._rings, self._taps = arrays, rings, config.target_layer_ids
        features = empty(rows, len(self._taps) * width, dtype=np.float16)
        fused, normed = empty(rows, width), empty(rows, width, dtype=np.float16)
        inv_freq, gain = inverse_frequencies(config)
        cos, sin = (empty(rows, config.n_rot // 2) for _ in range(2))
        outs = [empty(rows, stack.shape[0]) for stack, _ in projections.stacks]
        made: dict[str, Any] = {}
        for out, (_, names) in zip(outs, projections.stacks, strict=True):
            made |= {name: out[:, i * row : (i + 1) * row] for i, name in enumerate(names)}
        keys, values = ([made[name] for name in names] for names in _names(config))
        batch = rows_of(a, pages=a.pages, length=a.length)
        self._steps: list[Callable[[int], None]] = [
            Features(a.sources.view(np.uint64), a.counts, a.row, width, features),
            multiply(features, [projections.fuse], [fused]),
            RmsNorm(fused, projections.norm, config.norm_eps, half=normed),
            multiply(normed, [stack for stack, _ in projections.stacks], outs),
            Angles(a.position, device.array(inv_freq), cos, sin, gain=gain),
            Append(keys, values, projections.key_norms, cos, sin, batch, eps=config.norm_eps, **rings.pages()),
        ]

    def __call__(self, n: int) -> None:
        """Launch for the first `n` rows of the uploaded arrays."""
        for step in self._steps:
            step(n)

    def fill(self, batch: Sequence[Piece]) -> int:
        """Describe rows of some sequences in the host's arrays, and count them as read; return their number."""
        host, at = self.arrays.host, 0
        for i, (state, rows) in enumerate(batch):
            part = slice(at, at + len(rows))
            host.row_starts[i], host.row_starts[i + 1] = part.start, part.stop
            host.sequence[part], host.row[part] = i, rows
            host.position[part] = np.arange(state.length, state.length + len(rows))
            host.length[i] = state.length % self._rings.size
            state.length, at = state.length + len(rows), part.stop
        host.counts[:] = at, len(batch)
        return at

    def send(self, slots: Sequence[int], features: Mapping[int, GpuArray]) -> None:
        """Upload the host's arrays with the pages of the sequences and the addresses of the features."""
        host = self.arrays.host
        for i, slot in enumerate(slots):
            host.pages[i] = self._rings.pages_of(slot, host.pages.shape[1])
        host.sources.view(np.uint64)[:] = [features[tap].data.ptr for tap in self._taps]
        self.arrays.upload()


class Context:
    """Appends positions to the rings: few by the launches of a decode step, more than `PENDING` by those of a prefill.

    arrays: inputs of a pass of few: arrays of `context_shapes`, ``pages`` (S, P) of the rings, and ``sources``, addresses of
        features.
    scratch: memory of the pass of many.
    graphs: run a pass of few on the uploaded arrays.
    """

    def __init__(self, weights: DeviceWeights, config: DraftConfig, rings: DeviceRings, scratch: ScratchArena) -> None:
        self._taps, self._rings = config.target_layer_ids, rings
        gains = [weights.host.vector(f"blk.{i}.attn_k_norm.weight") for i in range(config.n_layers)]
        projections = _Projections(
            weights.matrix("fc.weight"),
            weights.vector("enc.output_norm.weight"),
            weights.stacks([name for pair in zip(*_names(config), strict=True) for name in pair]),
            device.array(np.stack(gains)),
        )
        make, sources = partial(_Launches, projections, config, rings), (2 * len(self._taps),)
        self.arrays = DeviceArrays(**context_shapes(), pages=(SEQUENCES, rings.laps), sources=sources)
        self._few = make(self.arrays, rows=PENDING, multiply=DecodeLinear, empty=device.empty)
        self.graphs = Graphs(self._few, self._clear)
        self._laid: tuple[list[int], list[int]] | None = None
        shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("sequence", "position", "row"), (_MANY,))
        shapes |= {"counts": (2,), "row_starts": (_MANY_SEQUENCES + 1,), "length": (_MANY_SEQUENCES,)}
        arrays = DeviceArrays(**shapes, pages=(_MANY_SEQUENCES, rings.laps + _MANY // PAGE), sources=sources)
        n_bytes = 2 * _UNPACKED * len(self._taps) * config.width
        unpacked = UnpackScratch(n_bytes, scratch.alloc, kept=spare_bytes())
        self._many = make(arrays, rows=_MANY, multiply=partial(PrefillLinear, scratch=unpacked), empty=scratch.alloc)

    def read(self, items: Sequence[tuple[DraftState, Rows]], features: Mapping[int, GpuArray]) -> None:
        """Read rows of several sequences; see `BlockDraft.read_many`."""
        n_rows, pieces = len(features[self._taps[0]]), list[Piece]()
        for state, rows in items:
            wanted = np.arange(n_rows, dtype=np.int32)[rows] if isinstance(rows, slice) else np.asarray(rows, np.int32)
            # rows that later rows of the same call would overwrite in the ring are skipped
            skipped = max(len(wanted) - self._rings.reach, 0)
            state.length += skipped
            if len(wanted):
                pieces.append((state, wanted[skipped:]))
        few = sum(len(rows) for _, rows in pieces) <= PENDING and len(pieces) <= SEQUENCES
        for batch in _batches(pieces):
            launches, run = (self._few, self.graphs) if few else (self._many, self._many)
            n = launches.fill(batch)
            size = self.prepare(n) if few else n
            launches.send([state.slot for state, _ in batch], features)
            run(size)
        if few:
            self._laid = None

    def lay(self, states: Sequence[DraftState], features: Mapping[int, GpuArray]) -> None:
        """Upload the slots of the sequences and the addresses of the features; a kernel selects the rows.

        An upload equal to the last one is skipped.
        """
        laid = [state.slot for state in states], [features[tap].data.ptr for tap in self._taps]
        if self._laid != laid:
            self._few.send(laid[0], features)
            self._laid = laid

    def prepare(self, n: int) -> int:
        """Capture a graph that reads up to `n` rows; return its key."""
        size = next(bucket for bucket in BUCKETS if bucket >= n)
        self.graphs.prepare(size)
        return size

    def _clear(self) -> None:
        self.arrays.counts.fill(0)


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Yield the rows of all pieces in passes of many."""
    batch, room = list[Piece](), _MANY
    for state, rows in pieces:
        while len(rows):
            batch.append((state, rows[:room]))
            rows, room = rows[room:], room - len(batch[-1][1])
            if room == 0 or len(batch) == _MANY_SEQUENCES:
                yield batch
                batch, room = [], _MANY
    if batch:
        yield batch
