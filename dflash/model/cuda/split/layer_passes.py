"""Passes of a layer split: each GPU runs its layers and sends the residual stream to the next one, the last to the first."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dflash.kernels.arrays import GpuArray
from dflash.kernels.gpu import device
from dflash.kernels.gpu.batch import DeviceBatch
from dflash.kernels.gpu.devices import Devices
from dflash.kernels.ragged import PENDING, Ragged
from dflash.model.cuda.graphs import Graphs
from dflash.model.cuda.ops import Ops
from dflash.model.cuda.passes import PROMPTS, SEQUENCES, Layers, PassGraphKey, StepPass, bucket_of
from dflash.model.cuda.scratch_arena import ScratchArena
from dflash.model.cuda.split.context import SplitContext

_BETWEEN = "stream", "normed", "squares"
"""Arrays that the first norm of the next GPU reads; the multiply behind the last block has prepared it."""


class LayerStage:
    """The layers of one GPU in a pass."""

    def __init__(self, parts: SplitContext, i: int, ops: Ops, batch: DeviceBatch) -> None:
        self.ops, self.batch = ops, batch
        layers = parts.plan.devices[i].layers
        self.layers = Layers(parts.weights[i], parts.config, parts.pools.parts[i], ops, layers=layers)
        self.graphs = Graphs(self.launch, batch.clear)

    def launch(self, shape: PassGraphKey) -> None:
        """Launch the layers of a decode pass."""
        self.ops.sequences = 1 if shape.alone else self.batch.max_sequences
        self.layers(shape.rows, shape.capture)


class _Chain:
    """The stages of a pass, one after the other.

    layers: layers of the first GPU, whose arrays hold the results of the pass.
    """

    def __init__(self, devices: Devices, stages: Sequence[LayerStage]) -> None:
        self._devices, self._stages = devices, stages
        self.batch, self.layers = stages[0].batch, stages[0].layers

    def _make_room(self, capture: Sequence[int]) -> None:
        """Allocate the arrays of captured layers, where they are computed and on the first GPU."""
        for i, stage in enumerate(self._stages):
            with self._devices[i]:
                stage.layers.make_room([layer for layer in capture if i == 0 or layer in stage.layers.layers])

    def _share_batch(self) -> None:
        words = self.batch.uploaded()
        for i, stage in enumerate(self._stages[1:], 1):
            self._devices.send(0, i, [(words, stage.batch.uploaded(words.size))])

    def _run(self, n: int, capture: Sequence[int], run: Callable[[LayerStage], None]) -> None:
        """Run all stages for `n` rows; the stream of the last layer ends on the first GPU."""
        n_stages, home = len(self._stages), self.layers
        for i, stage in enumerate(self._stages):
            with self._devices[i]:
                run(stage)
            last = i + 1 == n_stages
            here, there = stage.layers.space, self._stages[0 if last else i + 1].layers.space
            names = _BETWEEN if stage.ops.splits_norms and not last else _BETWEEN[:1]
            pairs = [(getattr(here, name)[:n], getattr(there, name)[:n]) for name in names]
            if i:
                own = [layer for layer in capture if layer in stage.layers.layers]
                found = [(stage.layers.captured[layer][:n], home.captured[layer][:n]) for layer in own]
                self._devices.send(i, 0, found)
            self._devices.send(i, 0 if last else i + 1, pairs)


class LayerDecode(_Chain, StepPass):
    """A decode pass over several GPUs."""

    def __init__(self, parts: SplitContext, pages: int, scratch: Sequence[ScratchArena]) -> None:
        devices, config, weights = parts.devices, parts.config, parts.weights
        self.logits = scratch[0].alloc(PENDING, config.n_vocab)
        stages = []
        for i in range(len(devices)):
            with devices[i]:
                batch = DeviceBatch(PENDING, SEQUENCES, pages)
                stages.append(LayerStage(parts, i, Ops(config, batch, prefill=False, empty=scratch[i].alloc), batch))
        super().__init__(devices, stages)
        head = weights[0].matrix("token_embd.weight" if config.tied else "output.weight")
        self.head = stages[0].ops.multiply(self.layers.space.wanted, [head], [self.logits])
        self._ends = Graphs(self._launch_end, stages[0].batch.clear)

    def _replay(self, shape: PassGraphKey) -> None:
        self._share_batch()
        self._run(shape.rows, shape.capture, lambda stage: stage.graphs(shape))
        self._ends(shape)

    def _graphs_of_all(self) -> Sequence[Graphs]:
        return [self._ends, *(stage.graphs for stage in self._stages)]

    def project(self, wanted: GpuArray, n: int) -> GpuArray:
        """See `StepPass`."""
        device.copy(self.layers.space.wanted[:n], wanted)
        self.head(bucket_of(n))
        return self.logits[:n]

    def prepare(self, shape: PassGraphKey) -> None:
        """See `StepPass`."""
        self._make_room(shape.capture)
        for i, stage in enumerate(self._stages):
            with self._devices[i]:
                stage.graphs.prepare(shape)
        self._ends.prepare(shape)

    def _launch_end(self, shape: PassGraphKey) -> None:
        assert self.layers.output_norm is not None, "the first GPU has the last norm"
        self.layers.output_norm(shape.rows)
        if shape.logits:
            self.head(shape.rows)


class LayerPrefill(_Chain):
    """A prefill pass over several GPUs, with the interface of `PrefillPass`."""

    copies = None

    def __init__(self, parts: SplitContext, rows: int, pages: int) -> None:
        devices, config = parts.devices, parts.config
        stages = []
        for i in range(len(devices)):
            with devices[i]:
                batch = DeviceBatch(rows, PROMPTS, pages)
                ops = Ops(config, batch, prefill=True, unpacked_bytes=parts.plan.devices[i].unpacked)
                stages.append(LayerStage(parts, i, ops, batch))
        super().__init__(devices, stages)
        self.arenas = [ScratchArena([stage.layers.space.arena, *stage.ops.scratch]) for stage in stages]
        self.scratch = self.arenas[0]

    def __call__(self, tokens: NDArray[np.int32], rows: Ragged, capture: tuple[int, ...]) -> None:
        """See `PrefillPass`."""
        self._make_room(capture)
        self.batch.upload(tokens, rows)
        self._share_batch()
        n = len(tokens)
        self._run(n, capture, lambda stage: stage.layers(n, capture))
        assert self.layers.output_norm is not None, "the first GPU has the last norm"
        self.layers.output_norm(n)
