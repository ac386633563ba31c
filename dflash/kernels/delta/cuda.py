"""The mixer of a linear-attention layer on a GPU: convolution, gated delta rule and gated norm."""

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.cuda_arguments import Inputs, MixerWeights, constants, most_shared, rows_of, step_arguments
from dflash.kernels.delta.cuda_norm import GatedNorm
from dflash.kernels.delta.cuda_one_row import LEAST_SEQUENCES, LatencyStep, ThroughputStep
from dflash.kernels.delta.cuda_prompt import Prompt, PromptScratch, scratch_bytes
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.delta.step_shape import ACCEPTED_ROOM, StepShape, step_shapes
from dflash.kernels.exchange.signals import SIGNALS, PeerLink
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.ragged import PENDING

__all__ = ["DeltaStep", "Flush", "Inputs", "MixerWeights", "Prompt", "PromptScratch", "scratch_bytes"]

_FOLDER = Path(__file__).parent
_STATES_ASIDE = 2  # states of a tree that a block stores in shared memory
_FEW_ROWS = 4  # rows of a sequence up to which a thread takes four value rows
_LEAST_FOR_FOUR = 32  # value rows of a block from which threads may take four; the block then has 64 threads
_LEAST_ROOM = 8  # smallest row capacity of shared memory, so that fewer launch variants are bound


def threads_of(own: int, value_rows: int) -> int:
    """Return the threads of a block, as in smem.cuh."""
    return 8 * own // value_rows + 32 * (4 if value_rows == 2 else 2)


class DeltaStep:
    """Convolution, delta rule and gated norm of a layer for pending rows, at most 64 of a sequence.

    batch: batch in which the rows of all sequences become pending.
    memory: convolution inputs and recurrent state, updated as on the CPU.
    split: blocks of a head; a fused norm differs in its last bits between values.
    value_rows: value rows of a thread, 2 or 4; the result does not depend on it. The default is the fastest in measurements.
    fused: make the norm part of the launch; see `step_shapes`.
    link: link to the other GPUs of a tensor split, which receive the results; requires `fused`.
    read: float32 (T, H * V), optional; scratch memory for what is read before the norm, which layers may share; used if the
        norm is not part of the launch.
    read: float32 (T, H * V) or None; that memory, or a new array in its place; None with a fused norm.

    A row has the same bits in a chain, in a tree and alone, whatever else is in the launch. The kernel reads the states and
    the batch before the previous kernel has finished. That is safe because a pass begins with the upload of its batch and
    no other kernel of the pass writes them.
    """

    def __init__(
        self,
        inputs: Inputs,
        weights: MixerWeights,
        batch: Any,
        conv_memory: ConvMemory,
        memory: DeltaMemory,
        *,
        split: int | None = None,
        value_rows: int | None = None,
        fused: bool | None = None,
        link: PeerLink | None = None,
        read: GpuArray = None,
    ) -> None:
        n_groups, n_heads, width, n_values = memory.sizes
        taps, clusters, self._most = len(weights.taps), capabilities().has_clusters, most_shared()
        self._shapes = step_shapes(n_values, width, taps, self._most, clusters=clusters, split=split, fused=fused)
        fused = self._shapes[0].fused
        assert link is None or fused, "other GPUs receive the results after the norm"
        self._rows = rows_of(inputs, weights, conv_memory, memory)
        self._sequences, self._memory = batch.max_sequences, memory
        self.read = None if fused else self._outputs(read, (min(self._rows, batch.max_rows), n_heads * n_values))
        readers = cupy.zeros((batch.max_sequences, n_groups), np.int32)
        peers = (None, 0) if link is None else (link.table(), SIGNALS)
        self._arguments = *step_arguments(inputs, weights, batch, conv_memory, memory, readers, self.read), *peers
        of_model = constants(conv_memory, memory) | {"FUSE_NORM": int(fused)} | ({} if link is None else link.macros)
        self._kernel = functools.partial(kernel, _FOLDER / "step.cu", "step", dependent=True, **of_model)
        self._value_rows = value_rows
        for rows in self._choices(self._shapes[0]):
            self._kernel(SPLIT=self._shapes[0].split, ROWS_PER_THREAD=rows, STAGE_INPUTS=1)
        self._norm = None if fused else GatedNorm(self.read, inputs, weights, batch, n_heads)
        self._latency: LatencyStep | None = None
        self._throughput: ThroughputStep | None = None
        if link is None and value_rows is None:
            given = self._arguments[:-2], constants(conv_memory, memory), memory, self._shapes[0].split
            self._latency = LatencyStep(*given, fused=fused)
            if fused and ThroughputStep.fits(memory, batch.max_sequences):
                self._throughput = ThroughputStep(*given)
        self._bound: dict[tuple[int, int, bool], Any] = {}

    def __call__(
        self, n_rows: int, stream: Stream = None, *, n_sequences: int | None = None, longest: int = PENDING
    ) -> None:
        """Run up to `n_rows` rows, with blocks for `n_sequences` sequences at a time; any number gives the same result.

        No sequence has more than `longest` rows. With fewer of them a block takes less shared memory, and more blocks run
        at once.
        """
        assert 0 < n_rows <= self._rows
        sequences, longest = min(n_sequences or n_rows, n_rows, self._sequences), min(longest, n_rows)
        few = sequences < LEAST_SEQUENCES
        one_row_each = self._latency if few else self._throughput
        if one_row_each is not None and longest == 1 and (sequences == n_rows or not few):
            one_row_each(sequences, stream)
            return
        shape = next((each for each in self._shapes if each.fits(max(longest, _LEAST_ROOM), self._most)), self._shapes[-1])
        key = longest, self._rows_of_thread(shape, n_rows, sequences), sequences > 1
        if key not in self._bound:
            self._bound[key] = self._bind(shape, *key)
        self._bound[key](stream, grid=(shape.split, self._memory.sizes[1], sequences))
        if self._norm:
            self._norm(n_rows, stream)

    @staticmethod
    def _outputs(read: GpuArray, shape: tuple[int, int]) -> GpuArray:
        """Return `read`, or a new array if that is None or of another shape."""
        return read if read is not None and read.shape == shape else cupy.empty(shape, np.float32)

    def _choices(self, shape: StepShape) -> tuple[int, ...]:
        return (self._value_rows,) if self._value_rows else (2, 4) if shape.own >= _LEAST_FOR_FOUR else (2,)

    def _rows_of_thread(self, shape: StepShape, n_rows: int, sequences: int) -> int:
        """Return value rows of a thread: with 4, two small blocks fit a multiprocessor; 2 is faster from row to row."""
        choices = self._choices(shape)
        if len(choices) == 1:
            return choices[0]
        return 4 if sequences > 1 and n_rows <= _FEW_ROWS * sequences else 2

    def _bind(self, shape: StepShape, n_rows: int, value_rows: int, several: bool) -> Any:
        """Bind a launch; for several sequences, store fewer states if that lets two blocks fit a multiprocessor."""
        room, places = max(n_rows, _LEAST_ROOM), _STATES_ASIDE if n_rows > 2 else 0
        staged = shape.shared_bytes(room, 0, staged=True) <= self._most
        while places and shape.shared_bytes(room, places, staged=staged) > self._most // (2 if several else 1):
            places -= 1
        run = self._kernel(SPLIT=shape.split, ROWS_PER_THREAD=value_rows, STAGE_INPUTS=int(staged))
        arguments = (*self._arguments, room, places)
        shared = shape.shared_bytes(room, places, staged=staged)
        return run.bind(1, threads_of(shape.own, value_rows), arguments, shared)


class Flush:
    """Applies accepted rows to the states of all layers without a new token, as before a snapshot.

    batch: batch; its counts, slot, accepted, n_accepted and buffer are read.
    """

    def __init__(self, memories: Sequence[tuple[ConvMemory, DeltaMemory]], batch: Any) -> None:
        arrays = [(c.tail, c.inputs, d.state, d.k, d.u, d.decay) for c, d in memories]
        self._kept = arrays
        addresses = cupy.array([[array.data.ptr for array in layer] for layer in arrays], np.uint64)
        conv_memory, memory = memories[0]
        _, n_heads, width, n_values = memory.sizes
        own = 64 if n_values % 64 == 0 else 16
        run = kernel(_FOLDER / "commit.cu", "commit", BLOCK_V=own, **constants(conv_memory, memory))
        arguments = addresses, batch.counts, batch.slot, batch.accepted, batch.n_accepted, batch.buffer, len(memory.state)
        grid = n_heads * n_values // own, min(batch.max_sequences, 8), len(memories)
        self._run = run.bind(grid, 4 * own, arguments, 4 * ACCEPTED_ROOM * (width + own + 1))

    def __call__(self, stream: Stream = None) -> None:
        """Run for the sequences of the batch; afterwards no accepted rows are outstanding."""
        self._run(stream)
