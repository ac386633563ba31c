"""The middle of a linear-attention layer on a GPU: conv, gated delta rule and gated norm."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from dflash.kernels.conv import cuda as conv
from dflash.kernels.delta.cuda_memory import (
    Inputs,
    Memory,
    Weights,
    constants,
    most_shared,
    rows_of,
    shapes,
    step_arguments,
)
from dflash.kernels.delta.cuda_norm import OWN, GatedNorm
from dflash.kernels.delta.cuda_prompt import Prompt, Scratch
from dflash.kernels.jit import kernel
from dflash.kernels.ragged import PENDING

__all__ = ["Flush", "Inputs", "Memory", "Prompt", "Scratch", "Step", "Weights", "shapes"]

_FOLDER = Path(__file__).parent
_STATES_ASIDE = 2
_FEW_ROWS = 2  # with which the norm is part of the launch
_CLUSTERS = 90  # the compute capability that brought them
_LANES_OF_FLUSH = 8  # as in flush.cu
_MOST_HEADS = 4
_LEAST_ROOM = 8  # rows of shared memory, through which kept rows pass, too
_ROOM = 16  # as in flush.cu


def share_of(n_groups: int, n_heads: int) -> int:
    """How many heads that read one key are in a block: many, as each block convolves the queries and keys."""
    return next(share for share in range(_MOST_HEADS, 0, -1) if n_heads // n_groups % share == 0)


def lanes_of(width: int, own: int) -> int:
    """How many threads have a value row: many for few rows, so that a processor has warps to change between."""
    return 16 if width % 32 == 0 and own <= OWN else 8


class Step:
    """Conv, delta rule and gated norm of a layer for pending rows, at most 64 in all.

    Parameters
    ----------
    inputs : Inputs
    weights : Weights
    batch : DeviceBatch
        All its sequences have pending rows.
    conv_memory : conv.cuda.Memory
    memory : Memory
        Both as after the same calls on the CPU.
    split : int, optional
        How many blocks share a head, with 16 or 32 of its values each; last bits depend on it.
    lanes : int, optional
        How many threads have a value row, 8 or 16; last bits depend on it.
    share : int, optional
        How many heads are in a block; no bit depends on it.
    fused : bool, optional
        Whether the norm is part of the launch, which needs clusters if heads are split; no bit depends on it. By default it
        is for few rows: the blocks of a cluster must find room side by side.

    Raises
    ------
    KernelError
        If an array is strided or of another shape or type.

    Notes
    -----
    A row has the same bits in a chain, in a tree and alone, whatever else is in the launch. Reads the memories and the batch
    ahead of the kernel before it: a pass begins with the upload of its batch, and no other kernel of it touches them.
    """

    def __init__(
        self,
        inputs: Inputs,
        weights: Weights,
        batch: Any,
        conv_memory: conv.Memory,
        memory: Memory,
        *,
        split: int | None = None,
        lanes: int | None = None,
        share: int | None = None,
        fused: bool | None = None,
    ) -> None:
        n_groups, n_heads, width, n_values = memory.sizes
        self._split, self._share = split or n_values // OWN, share or share_of(n_groups, n_heads)
        self._own = n_values // self._split
        self._most_fused = PENDING if fused else 0
        if fused is None and (self._split == 1 or int(cupy.cuda.Device().compute_capability) >= _CLUSTERS):
            self._most_fused = PENDING if self._split == 1 else _FEW_ROWS
        self._rows = rows_of(inputs, weights, conv_memory, memory)
        self._sequences, self._memory, self._taps = batch.max_sequences, memory, len(weights.taps)
        readers = cupy.zeros((batch.max_sequences, n_groups), np.int32)
        self._arguments = step_arguments(inputs, weights, batch, conv_memory, memory, readers)
        of_model = constants(conv_memory, memory)
        self._lanes = lanes or lanes_of(width, self._own)
        of_model |= {"SPLIT": self._split, "SHARE": self._share, "LANES": self._lanes}
        self._kernels = {
            norm: kernel(_FOLDER / "step.cu", "step", dependent=True, FUSED=int(norm), **of_model)
            for norm in {self._most_fused > 0, self._most_fused == PENDING}
        }
        self._norm = GatedNorm(inputs.mixed, inputs, weights, batch, n_heads, self._split)
        self._bound: dict[tuple[int, bool, bool], Any] = {}

    def __call__(self, n_rows: int, stream: Any = None, *, n_sequences: int | None = None) -> None:
        """Run up to `n_rows` rows, with blocks for `n_sequences` sequences at a time (any number is right)."""
        assert 0 < n_rows <= min(self._rows, PENDING)
        sequences = min(n_sequences or n_rows, n_rows, self._sequences)
        key = n_rows, n_rows <= self._most_fused, sequences > 1
        if key not in self._bound:
            self._bound[key] = self._bind(*key)
        self._bound[key](stream, grid=(self._split, self._memory.sizes[1] // self._share, sequences))
        if n_rows > self._most_fused:
            self._norm(n_rows, stream)

    def _bind(self, n_rows: int, fused: bool, several: bool) -> Any:
        """With several sequences two blocks shall fit on a processor, if need be with fewer states put aside."""
        room, places = max(n_rows, _LEAST_ROOM), _STATES_ASIDE if n_rows > 2 else 0
        most = most_shared(cupy.cuda.Device().id) // (2 if several else 1)
        while places and self._shared_bytes(room, places, fused) > most:
            places -= 1
        arguments = (*self._arguments, room, places)
        return self._kernels[fused].bind(1, self._lanes * self._own, arguments, self._shared_bytes(room, places, fused))

    def _shared_bytes(self, room: int, places: int, fused: bool) -> int:
        width, share = self._memory.sizes[2], self._share
        values = share * self._own
        channels, of_law = 2 * width + values, (2 * share + 4) // 4 * 4
        of_row = channels + of_law + (2 * values + 2 * self._split * share if fused else 0)
        return 4 * (room * of_row + (2 * self._taps - 1) * channels + places * values * width)


class Flush:
    """Applies kept rows to the memories of all layers without reading any token, as before a snapshot.

    Parameters
    ----------
    memories : sequence of (conv.cuda.Memory, Memory)
        Of the layers, all of one shape.
    batch : DeviceBatch
        Of which counts, slot, kept, n_kept and side are read.
    """

    def __init__(self, memories: Sequence[tuple[conv.Memory, Memory]], batch: Any) -> None:
        arrays = [(c.tail, c.inputs, d.state, d.k, d.u, d.decay) for c, d in memories]
        self._kept = arrays
        addresses = cupy.array([[array.data.ptr for array in layer] for layer in arrays], np.uint64)
        conv_memory, memory = memories[0]
        _, n_heads, width, n_values = memory.sizes
        own = 32 if n_values % 32 == 0 else 16
        run = kernel(_FOLDER / "flush.cu", "flush", OWN=own, **constants(conv_memory, memory))
        arguments = addresses, batch.counts, batch.slot, batch.kept, batch.n_kept, batch.side, len(memory.state)
        grid = n_heads * n_values // own, min(batch.max_sequences, 8), len(memories)
        self._run = run.bind(grid, _LANES_OF_FLUSH * own, arguments, 4 * _ROOM * (width + own + 4))

    def __call__(self, stream: Any = None) -> None:
        """Do it for the sequences of the batch; afterwards nothing counts as kept."""
        self._run(stream)
