"""Passes of a tensor split: every GPU runs its part of each layer; exchanges in the streams gather what others read."""

from collections.abc import Callable, Sequence
from copy import copy
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.exchange.cuda import Signals
from dflash.kernels.exchange.signals import PeerLinks
from dflash.kernels.gpu import device, jit
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.devices import Devices
from dflash.kernels.ragged import PENDING, Ragged
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.ops import scratch_bytes
from dflash.model.cuda.passes import PROMPTS, SEQUENCES, Layers, PassGraphKey, StepPass, bucket_of
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.split.context import SplitContext
from dflash.model.cuda.split.few_rows import FEW_ROWS, FewRowsOps, clear_gathered, few_rows_space
from dflash.model.cuda.split.shard_ops import ShardOps, ShardPlace
from dflash.model.cuda.split.shard_space import shard_space
from dflash.model.split.shards import Shard


class _Ranks:
    """The parts of a pass on all GPUs. batch, layers: those of the first GPU, whose arrays hold the results of the pass."""

    layers: Layers

    def __init__(self, parts: SplitContext, signals: tuple[Signals, Signals], batches: Sequence[DeviceBatch]) -> None:
        self._devices, self._batches, n = parts.devices, batches, len(parts.devices)
        self._signals = signals
        self.batch, self._all = batches[0], list[Layers]()
        self._shards = [Shard(rank, n) for rank in range(n)]
        self._places, spaces = list[ShardPlace](), list[SimpleNamespace]()
        for rank, shard in enumerate(self._shards):
            with parts.devices[rank]:
                part = parts.plan.devices[rank].config
                spaces.append(shard_space(parts.config, part, self.batch.max_rows, parts.pools.kv, shard))
            self._places.append(ShardPlace(parts.config, shard, *signals, spaces))

    def _make_room(self, capture: Sequence[int]) -> None:
        """Allocate the arrays of captured layers on the first GPU; all GPUs write to them."""
        self.layers.make_room(capture)
        for layers in self._all[1:]:
            layers.captured = self.layers.captured
        jit.warm()  # a kernel that is loaded during a pass would wait for one that waits for another GPU

    def _share_batch(self) -> None:
        words = self.batch.uploaded()
        for rank, batch in enumerate(self._batches[1:], 1):
            self._devices.send(0, rank, [(words, batch.uploaded(words.size))])

    def _run(self, n: int, capture: Sequence[int], of_ranks: Sequence[Layers]) -> None:
        """Launch step by step on all GPUs in turn, so that no GPU waits for one whose queue is empty."""
        for launches in zip(*(layers.steps(capture) for layers in of_ranks), strict=True):
            for rank, launch in enumerate(launches):
                with self._devices[rank]:
                    launch(n)

    def _join(self) -> None:
        for rank in range(1, len(self._all)):
            self._devices.wait(0, rank)


class TensorPrefill(_Ranks):
    """A prefill pass over several GPUs, with the interface of `PrefillPass`."""

    copies = None

    def __init__(self, parts: SplitContext, signals: tuple[Signals, Signals], rows: int, pages: int) -> None:
        super().__init__(parts, signals, _batches(parts.devices, rows, PROMPTS, pages))
        self.arenas, n_scratch = list[ScratchArena](), scratch_bytes(parts.config, rows, PROMPTS)
        for rank, place in enumerate(self._places):
            with parts.devices[rank]:
                plan = parts.plan.devices[rank]
                ops = ShardOps(
                    place, plan.config, self._batches[rank], prefill=True, n_scratch=n_scratch, unpacked_bytes=plan.unpacked
                )
                self._all.append(_layers(parts, rank, ops, place))
                self.arenas.append(ScratchArena([place.spaces[rank].arena, *ops.scratch]))
        self.layers, self.scratch = self._all[0], self.arenas[0]

    def __call__(self, tokens: NDArray[np.int32], rows: Ragged, capture: tuple[int, ...]) -> None:
        """See `PrefillPass`."""
        self._make_room(capture)
        self.batch.upload(tokens, rows)
        self._share_batch()
        self._run(len(tokens), capture, self._all)
        self._join()


class _RankPass(NamedTuple):
    """Launches of a decode pass on one GPU: `begin` and `end` stand before and behind all others."""

    ops: ShardOps
    layers: Layers
    begin: Callable[[], None]
    end: Callable[[], None]


class TensorDecode(_Ranks, StepPass):
    """A decode pass over several GPUs: one graph for each GPU and bucket of rows."""

    def __init__(
        self, parts: SplitContext, signals: tuple[Signals, Signals], pages: int, scratch: Sequence[ScratchArena]
    ) -> None:
        super().__init__(parts, signals, _batches(parts.devices, PENDING, SEQUENCES, pages))
        config, self.logits = parts.config, scratch[0].alloc(PENDING, parts.config.n_vocab)
        self._many, self._few, self._heads = list[_RankPass](), list[_RankPass](), list[Any]()
        for rank, place in enumerate(self._places):
            with parts.devices[rank]:
                part = parts.plan.devices[rank].config
                ops = ShardOps(place, part, self._batches[rank], prefill=False, empty=scratch[rank].alloc)
                layers = _layers(parts, rank, ops, place)
                rows = self._shards[rank].rows(config.n_vocab)
                head = _head(parts, rank, rows)
                launch = ops.multiply(layers.space.wanted, [head], [self.logits[:, rows]])
                begin = ops.links.advance() if isinstance(ops.links, PeerLinks) else _nothing
                self._all.append(layers)
                self._heads.append(launch)
                self._many.append(_RankPass(ops, layers, begin, _nothing))
        self.layers = self._all[0]
        if FewRowsOps.fit(config, self._many[0].ops, parts.pools.kv):
            self._few = self._passes_of_few_rows(parts)
        self._graphs = list[Graphs]()
        for rank, launch in enumerate(self._heads):
            with parts.devices[rank]:
                few = self._few[rank] if self._few else None
                self._graphs.append(Graphs(_RankLaunch(self._many[rank], few, launch), self._batches[rank].clear))

    def _passes_of_few_rows(self, parts: SplitContext) -> list[_RankPass]:
        places, spaces = list[ShardPlace](), list[SimpleNamespace]()
        for rank, place in enumerate(self._places):
            with parts.devices[rank]:
                spaces.append(few_rows_space(parts.config, place.spaces[rank], place.shard))
            places.append(place._replace(spaces=spaces))
        passes = []
        for rank, place in enumerate(places):
            with parts.devices[rank]:
                part = parts.plan.devices[rank].config
                ops = FewRowsOps(place, part, self._batches[rank], self._many[rank].ops)
                layers = _layers(parts, rank, ops, place)
                passes.append(_RankPass(ops, layers, _nothing, ops.links.end()))
        return passes

    def _passes(self, rows: int) -> list[_RankPass]:
        return self._few if self._few and rows <= FEW_ROWS else self._many

    def _make_room(self, capture: Sequence[int]) -> None:
        for few in self._few:
            few.layers.captured = self.layers.captured
        super()._make_room(capture)

    def _replay(self, shape: PassGraphKey) -> None:
        self._share_batch()
        for rank, graphs in enumerate(self._graphs):
            with self._devices[rank]:
                graphs(shape)
        self._join()

    def _graphs_of_all(self) -> Sequence[Graphs]:
        return self._graphs

    def project(self, wanted: GpuArray, n: int) -> GpuArray:
        """See `StepPass`."""
        for rank, layers in enumerate(self._all):
            to = layers.space.wanted[:n]
            if rank:
                self._devices.send(0, rank, [(wanted[:n], to)])
            else:
                device.copy(to, wanted)
            with self._devices[rank]:
                self._heads[rank](bucket_of(n))
        self._join()
        return self.logits[:n]

    def prepare(self, shape: PassGraphKey) -> None:
        """See `StepPass`. In the pass of zero rows no GPU waits for another, since kernels may be loaded by it."""
        self._make_room(shape.capture)
        if shape in self._graphs[0]:
            return
        self._devices.synchronize()
        for signals in self._signals:
            signals.let_pass()
        passes = self._passes(shape.rows)
        for rank, batch in enumerate(self._batches):
            with self._devices[rank]:
                batch.clear()
                passes[rank].ops.sequences = 1 if shape.alone else batch.max_sequences
                passes[rank].begin()
        self._run(shape.rows, shape.capture, [each.layers for each in passes])
        for rank, head in enumerate(self._heads):
            with self._devices[rank]:
                if shape.logits:
                    head(shape.rows)
                passes[rank].end()
        self._devices.synchronize()
        self._restart()
        for rank, graphs in enumerate(self._graphs):
            with self._devices[rank]:
                graphs.capture(shape)

    def _restart(self) -> None:
        for signals in self._signals:
            signals.restart()
        for rank, many in enumerate(self._many):
            with self._devices[rank]:
                if isinstance(many.ops.links, PeerLinks):
                    many.ops.links.restart()
                if self._few:
                    clear_gathered(self._few[rank].layers.space)
        self._devices.synchronize()  # no GPU signals to one that still counts from before


class _RankLaunch:
    """Launches a decode pass on one GPU."""

    def __init__(self, many: _RankPass, few: _RankPass | None, head: Any) -> None:
        self._many, self._few, self._head = many, few, head

    def __call__(self, shape: PassGraphKey) -> None:
        each = self._many if self._few is None or shape.rows > FEW_ROWS else self._few
        each.ops.sequences = 1 if shape.alone else SEQUENCES
        each.begin()
        each.layers(shape.rows, shape.capture)
        if shape.logits:
            self._head(shape.rows)
        each.end()


def _nothing() -> None:
    """Launch nothing: prologue or epilogue of a pass that has none."""


def _batches(devices: Devices, rows: int, sequences: int, pages: int) -> list[DeviceBatch]:
    batches = []
    for rank in range(len(devices)):
        with devices[rank]:
            batches.append(DeviceBatch(rows, sequences, pages))
    return batches


def _layers(parts: SplitContext, rank: int, ops: ShardOps, place: ShardPlace) -> Layers:
    part = parts.plan.devices[rank].config
    space = place.spaces[rank]
    return Layers(parts.weights[rank], part, parts.pools.parts[rank], ops, space=space, tables=parts.tables[rank])


def _head(parts: SplitContext, rank: int, rows: slice) -> Any:
    """Return the rows of the LM head that a GPU multiplies with; the first GPU has all of them, for drafts."""
    tied, tables = parts.config.tied, parts.tables[rank]
    whole = tied or rank == 0
    head = copy(tables.matrix("token_embd.weight" if tied else "output.weight"))
    head = head.rows(rows) if whole else head
    head.whole_rows = parts.config.n_vocab
    return head
