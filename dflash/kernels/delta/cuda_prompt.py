"""Prefill of a linear-attention layer's mixer on a GPU, in chunks of 64 positions."""

import math
from pathlib import Path
from typing import Any

import cupy
import numpy as np

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, Stream
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.cuda_arguments import Inputs, MixerWeights, constants, most_shared, rows_of
from dflash.kernels.delta.cuda_norm import GatedNorm
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.delta.state_copies import StateCopies
from dflash.kernels.gpu.jit import kernel

_FOLDER = Path(__file__).parent
_CHUNK = 64  # positions of a chunk, as in chunk.cuh
_LINE = 256  # bytes to which each array of the scratch is aligned
_MATRICES, _GATES = 4, 3  # of a chunk and head, as in chunk.cuh
_ROWS_OF_WARP, _HEADS_OF_BLOCK = 16, 8  # of prefill_conv.cu


class PromptScratch:
    """Intermediate arrays of the prefill kernels, shared by all layers of one shape.

    rows, sequences: capacity of a pass.
    n_groups, n_heads, width, n_values: g, H, K, V.
    memory: device memory to use if it is large enough. Other ops of the same stream may use it, too, between launches.

    Takes ``2 * (2 * G * K + 3 * H * V)`` bytes a row, and 33,536 bytes for each head of at most
    ``rows / 64 + 2 * sequences`` chunks.
    """

    def __init__(
        self, rows: int, n_groups: int, n_heads: int, width: int, n_values: int, *, sequences: int, memory: GpuArray = None
    ) -> None:
        self.sequences = sequences
        shapes = _shapes(rows, n_groups, n_heads, width, n_values, sequences)
        total, at, arrays = sum(map(_whole_lines, shapes)), 0, []
        raw = memory.view(np.uint8) if memory is not None and memory.nbytes >= total else cupy.empty(total, np.uint8)
        for kind, shape in shapes:
            arrays.append(raw[at : at + math.prod(shape) * np.dtype(kind).itemsize].view(kind).reshape(shape))
            at += _whole_lines((kind, shape))
        self.prepared, self.matrices, self.gates, self.read = arrays


_Shape = tuple[type, tuple[int, ...]]


def scratch_bytes(rows: int, n_groups: int, n_heads: int, width: int, n_values: int, *, sequences: int) -> int:
    """Return the bytes of a `PromptScratch`."""
    return sum(map(_whole_lines, _shapes(rows, n_groups, n_heads, width, n_values, sequences)))


def _shapes(rows: int, n_groups: int, n_heads: int, width: int, n_values: int, sequences: int) -> tuple[_Shape, ...]:
    chunks = most_chunks(rows, sequences)
    return (
        (np.uint16, (rows, 2 * n_groups * width + n_heads * n_values)),
        (np.uint16, (chunks, n_heads, _MATRICES, _CHUNK, _CHUNK)),
        (np.float32, (chunks, n_heads, _GATES, _CHUNK)),
        (np.float32, (rows, n_heads * n_values)),
    )


def _whole_lines(array: _Shape) -> int:
    kind, shape = array
    return -(-math.prod(shape) * np.dtype(kind).itemsize // _LINE) * _LINE


def most_chunks(rows: int, sequences: int) -> int:
    """Return the largest number of chunks of a pass with these numbers of rows and sequences."""
    return min(rows, rows // _CHUNK + 2 * sequences)


class Prompt:
    """Convolution, delta rule and gated norm of a layer in prefill: all sequences are `prefill`.

    batch: batch; its sequences must fit `scratch`.
    memory: convolution inputs and recurrent state, updated as on the CPU.
    copies: copies of states of the next pass; `layer` is the index of this layer in their arrays.
    Raises KernelError if an array is strided or of another shape or type.

    Chunks begin at multiples of 64 positions. Splitting a prompt there changes no bit, nor do other sequences of the batch.
    Queries, keys and values are rounded to float16, as is the state when it is read; the stored state stays float32.

    References
    ----------
    Yang, Kautz, Hatamizadeh 2024, arXiv 2412.06464.
    """

    def __init__(
        self,
        inputs: Inputs,
        weights: MixerWeights,
        batch: Any,
        conv_memory: ConvMemory,
        memory: DeltaMemory,
        scratch: PromptScratch,
        *,
        copies: StateCopies | None = None,
        layer: int = 0,
    ) -> None:
        n_groups, n_heads, width, n_values = memory.sizes
        self._rows, self._heads = rows_of(inputs, weights, conv_memory, memory), n_heads
        self._sequences = min(scratch.sequences, batch.max_sequences)
        if len(scratch.read) < self._rows:
            raise KernelError(f"delta: scratch for {len(scratch.read)} rows of a prompt, wanted {self._rows}")
        names = constants(conv_memory, memory)
        of_heads = {name: value for name, value in names.items() if name not in ("TAPS", "STORED_ROWS")}
        ragged = batch.slot, batch.accepted, batch.n_accepted, batch.buffer
        slots = len(memory.state)
        prepare = kernel(_FOLDER / "prefill_conv.cu", "prefill_conv", dependent=True, **names)
        self._prepare = prepare.bind(
            1,
            256,
            (inputs.mixed, weights.taps, batch.counts, batch.row_starts, batch.sequence, *ragged, conv_memory.tail,
             conv_memory.inputs, slots, scratch.prepared),
        )  # fmt: skip
        self._units = -(-(2 * n_groups + n_heads) // _HEADS_OF_BLOCK)
        chunks = kernel(_FOLDER / "chunk_wy.cu", "chunk_wy", dependent=True, **of_heads)
        self._chunks = chunks.bind(
            1,
            128,
            (scratch.prepared, inputs.alpha, inputs.beta, weights.ssm_a, weights.ssm_dt, batch.counts, batch.row_starts,
             batch.length, scratch.matrices, scratch.gates),
            max(4 * _CHUNK * (width + 8), 4 * _CHUNK * (2 * _CHUNK + 4)),
        )  # fmt: skip
        own = slice_of(n_values)
        stage = stage_bytes(width, own)
        stages = 2 if 2 * stage <= most_shared() else 1
        scan = kernel(_FOLDER / "chunk_scan.cu", "chunk_scan", dependent=True, BLOCK_V=own, STAGES=stages, **names)
        self._scan = scan.bind(
            (n_values // own, n_heads, self._sequences),
            2 * own,
            (scratch.prepared, scratch.matrices, scratch.gates, inputs.mixed, batch.counts, batch.row_starts, batch.length,
             *ragged, conv_memory.tail, conv_memory.inputs, memory.state, memory.k, memory.u, memory.decay, slots,
             scratch.read, copies and copies.words, layer),
            stages * stage,
        )  # fmt: skip
        self._norm = GatedNorm(scratch.read, inputs, weights, batch, n_heads)

    def __call__(self, n_rows: int, stream: Stream = None) -> None:
        """Run up to `n_rows` rows."""
        assert 0 < n_rows <= self._rows
        self._prepare(stream, grid=(-(-n_rows // _ROWS_OF_WARP), self._units))
        self._chunks(stream, grid=(most_chunks(n_rows, self._sequences), self._heads))
        self._scan(stream)
        self._norm(n_rows, stream)


def slice_of(n_values: int) -> int:
    """Return the value rows of a block. The chunks of a head run in sequence, so smaller blocks only add memory traffic."""
    return next(own for own in (64, 48, 32, 16) if n_values % own == 0)


def stage_bytes(width: int, own: int) -> int:
    """Return the bytes of shared memory of a chunk in `chunk_scan.cu`."""
    halves = 2 * (width + 8) + own + 8 + _MATRICES * (_CHUNK + 8)
    return 2 * _CHUNK * halves + 4 * _GATES * _CHUNK
