"""One pass over the layers: a decode pass replays a CUDA graph, a prefill pass launches its kernels."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.delta.state_copies import StateCopies
from dflash.kernels.embed.cuda import Embed
from dflash.kernels.embed.cuda_pass_start import PassStart
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.norm.cuda import RmsNorm
from dflash.kernels.ragged import PENDING, Ragged
from dflash.kernels.rope.cuda import Angles
from dflash.kernels.soft_cap.cuda import SoftCap, Suppress
from dflash.kernels.tree.cuda import StashRows
from dflash.model.config import Config
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.weights import DeviceWeights
from dflash.model.cuda.workspace import workspace
from dflash.model.network.target import target
from dflash.model.run.cuda import Device, Launches, Made, Step, steps_of
from dflash.model.run.memory import Memory
from dflash.model.run.rules import applies
from dflash.model.state.pools import Pools

SEQUENCES = 64
"""Most sequences in a decode pass of at most 64 rows."""

WIDE = 128
"""Most rows of a decode pass of one row for each sequence, see `rows_of`."""

PROMPTS = 16
"""Most sequences in a prefill pass."""

BUCKETS = 1, 2, 4, 8, 16, 24, 32, 48, 64
"""Row counts of decode passes that are captured; a pass runs in the smallest that holds its rows."""

WIDE_BUCKETS = 96, WIDE
"""The same for passes of one row for each sequence."""


class Layers:
    """All launches of a pass, from embedding to last norm, bound to arrays of their own.

    layers: layers to run, of which `pools` has the memory; by default all.
    tables: weights that belong to no layer; by default `weights`.
    captured: dict of int to float32 (N, D); residual stream after each captured layer.
    """

    def __init__(
        self,
        weights: DeviceWeights,
        config: Config,
        pools: Pools,
        ops: Ops,
        *,
        layers: range | None = None,
        space: SimpleNamespace | None = None,
        tables: DeviceWeights | None = None,
    ) -> None:
        self.space = s = space or workspace(config, ops.batch.max_rows, pools.kv)
        self.layers, tables = range(config.n_layers) if layers is None else layers, tables or weights
        self._whole = len(self.layers) == config.n_layers
        self.captured: dict[int, Any] = {}
        self._keeps: dict[int, StashRows] = {}
        self._source = device.array(np.array([s.stream.data.ptr], np.uint64))
        self._writes_twice = not (ops.prefill or config.experts or config.layers)  # the last launch of a block
        network, memory = target(config, tables.host), Memory.of(config, pools, self.layers)
        on = Device(ops, weights, s, memory, eps=config.norm_eps, config=config, tables=tables)
        self.made = made = _started_at_once(Launches.of(network.program, on, self.layers))
        self._start, self.blocks = steps_of(made.start), [steps_of(block) for block in made.blocks]
        self.output_norm = made.end[0].steps[0] if made.end else None

    def make_room(self, capture: Sequence[int]) -> None:
        """Allocate the arrays of layers to capture."""
        for layer in capture:
            if layer not in self.captured:
                self.captured[layer] = device.empty(*self.space.stream.shape)
                self._keeps[layer] = StashRows(self._source, self.captured[layer][None])

    def __call__(self, n: int, capture: Sequence[int]) -> None:
        """Launch for `n` rows."""
        for step in self.steps(capture):
            step(n)

    def steps(self, capture: Sequence[int]) -> Iterator[Callable[[int], None]]:
        """Yield the launches in order: those before the first layer, one step for each layer, and the last norm."""
        yield from self._start
        for i, block in zip(self.layers, self.blocks, strict=True):
            yield partial(self._run_block, i, block, capture)
        if self.output_norm and self._whole:
            yield self.output_norm

    def _run_block(self, i: int, block: Sequence[Step], capture: Sequence[int], n: int) -> None:
        for step in block[:-1]:
            step(n)
        if i in capture and self._writes_twice:
            block[-1](n, kept=self.captured[i])
            return
        block[-1](n)
        if i in capture and i in self._keeps:
            self._keeps[i](0, n, 0)


def _started_at_once(made: Launches) -> Launches:
    """Return the launches with embedding, angles and the first norm as one, where they can be."""
    match made:
        case _ if not applies("pass-start"):
            pass
        case Launches([Made(_, [Embed() as embed]) as first, Made(_, [Angles() as angles]) as second], [block, *rest], end):
            match block:
                case [Made(op, [RmsNorm() as norm]), *others] if one := PassStart.of(embed, norm, angles):
                    start = [first._replace(steps=[one]), second._replace(steps=())]
                    return Launches(start, [[Made(op, ()), *others], *rest], end)
    return made


class PassGraphKey(NamedTuple):
    """Key of a captured graph of a decode pass.

    alone: whether all rows belong to one sequence.
    longest: most rows of a sequence. With fewer of them more blocks of the delta rule run at once; bits are the same.
    """

    rows: int
    alone: bool
    capture: tuple[int, ...]
    logits: bool
    longest: int = PENDING


_LONGEST = 1, 4, 16, PENDING
"""Values of `PassGraphKey.longest` for several sequences: an MTP head's drafts have up to four rows, blocks 16."""


class PromptPass(Protocol):
    """A prefill pass, as `PrefillPass`; its arrays are on the first GPU."""

    scratch: ScratchArena

    @property
    def copies(self) -> StateCopies | None:
        """Copies of recurrent states, set by the model before each pass; None if the pass can't make any."""

    @property
    def layers(self) -> Layers:
        """Launches and arrays of the first GPU. Read after a pass, for its results."""

    def __call__(self, tokens: NDArray[Any], rows: Ragged, capture: tuple[int, ...]) -> None:
        """Run prefill spans. Called by the model, which reads the results from `layers`."""


class StepPass(ABC):
    """A decode pass, on one GPU or over several: graphs for each bucket of rows, captured when they are first needed.

    batch, layers: on the first GPU; `layers` has the results of a pass.
    logits: float32 (rows, V); logits of the rows of the last pass.
    has_lengths: True if passes of several sequences have graphs of their own by the rows of the longest sequence.
    """

    batch: DeviceBatch
    layers: Layers
    logits: GpuArray
    has_lengths = False

    def __call__(
        self,
        tokens: NDArray[np.int32],
        rows: Ragged,
        capture: tuple[int, ...],
        *,
        logits: bool,
        amend: Callable[[], None] | None = None,
    ) -> None:
        """Run the pass; its results are in `logits` and in `layers`.

        `amend` is called after the upload of the batch and may launch kernels that change the batch on the device. Kernels
        of a pass read the batch before their predecessors have finished (dependent launch). A kernel that changes the batch
        must therefore not trigger the launch of its successor early.
        """
        shape = self.key_of(rows, capture, logits=logits)
        self.prepare(shape)
        self._upload(tokens, rows)
        if amend is not None:
            amend()
        self._replay(shape)

    def key_of(self, rows: Ragged, capture: tuple[int, ...], *, logits: bool) -> PassGraphKey:
        """Return the key of the graph that runs a batch."""
        n, sequences, longest = len(rows.sequence), len(rows.slot), PENDING
        if self.has_lengths and sequences > 1:
            most = int(np.diff(rows.row_starts[: sequences + 1]).max())
            longest = next(each for each in _LONGEST if each >= most)
        return PassGraphKey(bucket_of(n), sequences == 1, capture, logits, longest)

    @property
    def launches(self) -> dict[int, int]:
        """Number of launches of a pass with logits on all GPUs, for each captured bucket."""
        graphs = self._graphs_of_all()
        plain = [shape for shape in graphs[0].launches if shape.logits and not shape.capture]
        return {shape.rows: sum(each.launches[shape] for each in graphs) for shape in plain}

    @abstractmethod
    def project(self, wanted: GpuArray, n: int) -> Any:
        """Return logits of `n` rows of another pass, float16 (n, D) after the last norm; valid until the next pass."""

    @abstractmethod
    def prepare(self, shape: PassGraphKey) -> None:
        """Allocate arrays and capture the graphs for a shape."""

    def _upload(self, tokens: NDArray[np.int32], rows: Ragged) -> None:
        self.batch.upload(tokens, rows)

    @abstractmethod
    def _replay(self, shape: PassGraphKey) -> None:
        """Run the graphs of a shape on the uploaded batch."""

    @abstractmethod
    def _graphs_of_all(self) -> Sequence[Graphs]:
        """Return the graphs of all GPUs."""


class DecodePass(StepPass):
    """Up to 64 pending rows and their logits, as one graph for each bucket of rows; up to `rows` if each has its sequence.

    The last parameter is the arena of all arrays that are valid until the next pass of any kind.
    """

    has_lengths = True

    def __init__(
        self,
        weights: DeviceWeights,
        config: Config,
        pools: Pools,
        pages: int,
        scratch: ScratchArena,
        *,
        rows: int = PENDING,
    ) -> None:
        self.batch = DeviceBatch(rows, rows, pages)
        starts = range(0, rows if rows > PENDING else 0, PENDING)
        self._parts = {start: DeviceBatch(PENDING, PENDING, pages) for start in starts}
        self.logits = scratch.alloc(rows, config.n_vocab)
        parts = list(self._parts.values())
        self._ops = ops = Ops(config, self.batch, prefill=False, empty=scratch.alloc, parts=parts, uploaded=True)
        self.layers = Layers(weights, config, pools, ops)
        head = weights.matrix("token_embd.weight" if config.tied else "output.weight")
        self.head = ops.multiply(self.layers.space.wanted, [head], [self.logits])
        self._edits: list[SoftCap | Suppress] = [SoftCap(self.logits, config.logit_cap)] if config.logit_cap else []
        if config.suppressed:
            self._edits.append(Suppress(self.logits, device.array(np.array(config.suppressed, np.int32))))
        self.graphs = Graphs(self._launch, self._clear)

    def _upload(self, tokens: NDArray[np.int32], rows: Ragged) -> None:
        n = len(rows.sequence)
        self.batch.upload(tokens, rows)
        for start, batch in self._parts.items():
            if n > PENDING and n > start:
                batch.upload(tokens[start : start + PENDING], _single_rows(rows, start))

    def _replay(self, shape: PassGraphKey) -> None:
        self.graphs(shape)

    def _graphs_of_all(self) -> Sequence[Graphs]:
        return [self.graphs]

    def project(self, wanted: GpuArray, n: int) -> Any:
        """See `StepPass`."""
        device.copy(self.layers.space.wanted[:n], wanted)
        self._project(bucket_of(n))
        return self.logits[:n]

    def prepare(self, shape: PassGraphKey) -> None:
        """See `StepPass`."""
        self.layers.make_room(shape.capture)
        self.graphs.prepare(shape)

    def _launch(self, shape: PassGraphKey) -> None:
        self._ops.sequences = 1 if shape.alone else self.batch.max_sequences
        self._ops.longest = shape.longest
        self.layers(shape.rows, shape.capture)
        if shape.logits:
            self._project(shape.rows)

    def _project(self, n: int) -> None:
        """Launch the LM head, and what changes its logits."""
        self.head(n)
        for edit in self._edits:
            edit(n)

    def _clear(self) -> None:
        for batch in (self.batch, *self._parts.values()):
            batch.clear()


def _single_rows(rows: Ragged, start: int) -> Ragged:
    """Return up to 64 rows from `start` on of a batch whose sequences have one row each."""
    some = {name: array[start : start + PENDING] for name, array in rows._asdict().items()}
    n = len(some["slot"])
    return Ragged(**some | {"row_starts": np.arange(n + 1, dtype=np.int32), "sequence": np.arange(n, dtype=np.int32)})


class PrefillPass:
    """Prefill spans, launched kernel by kernel; see `Layers`.

    The memory of a pass, which holds nothing between passes, is available to others as a `ScratchArena`.

    unpacked_bytes: memory for weights that stay unpacked.
    copies: copies of recurrent states that the next pass makes.
    """

    def __init__(
        self, weights: DeviceWeights, config: Config, pools: Pools, rows: int, pages: int, *, unpacked_bytes: int
    ) -> None:
        self.batch = DeviceBatch(rows, PROMPTS, pages)
        ops = Ops(config, self.batch, prefill=True, unpacked_bytes=unpacked_bytes)
        self.copies = ops.copies
        self.layers = Layers(weights, config, pools, ops)
        self.scratch = ScratchArena([self.layers.space.arena, *ops.scratch])

    def __call__(self, tokens: NDArray[np.int32], rows: Ragged, capture: tuple[int, ...]) -> None:
        """Run the pass; its results are in `layers`."""
        self.layers.make_room(capture)
        self.batch.upload(tokens, rows)
        self.layers(len(tokens), capture)


def bucket_of(n: int) -> int:
    """Return the smallest of `BUCKETS` and `WIDE_BUCKETS` that holds `n` rows."""
    return next(bucket for bucket in BUCKETS + WIDE_BUCKETS if bucket >= n)


def rows_of(config: Config, sequences: int) -> int:
    """Return the most rows of a decode pass in a model of `sequences` sequences.

    More than 64 rows only pay where multiplies read the weights once for them: on Hopper. Experts take at most 64.
    """
    return WIDE if sequences > PENDING and not config.experts and capabilities().has_wgmma else PENDING
