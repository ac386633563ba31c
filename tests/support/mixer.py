"""The middle of a linear-attention layer for tests: random weights and memories, the definition, and the GPU."""

from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from recurrent import SLOTS, batch, copy

from dflash.kernels.cases import Rows
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.conv.reference import causal_conv
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.delta.reference import gated_delta, unit
from dflash.kernels.norm.reference import gated_rms_norm

EPS = 1e-6


def random(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


class Tokens(NamedTuple):
    """Inputs of a layer, a row a token."""

    mixed: np.ndarray
    gate: np.ndarray
    alpha: np.ndarray
    beta: np.ndarray

    def __getitem__(self, rows):
        return Tokens(*(np.ascontiguousarray(array[rows]) for array in tuple(self)))

    def __len__(self):
        return self.mixed.shape[0]


class Memories(NamedTuple):
    """Both memories of a layer, in NumPy."""

    conv: ConvMemory
    delta: DeltaMemory

    def copy(self):
        return Memories(copy(self.conv), copy(self.delta))


@dataclass
class Mixer:
    """Weights of one layer: G key heads, H value heads, K key size, V value size."""

    n_groups: int
    n_heads: int
    width: int
    n_values: int
    n_taps: int = 4

    def __post_init__(self):
        self.n_channels = 2 * self.n_groups * self.width + self.n_heads * self.n_values
        self.taps = random(self.n_taps, self.n_channels, seed=30) / np.float32(np.sqrt(self.n_taps))
        self.ssm_a, self.ssm_dt = -np.exp(random(self.n_heads, seed=31)), random(self.n_heads, seed=32)
        self.ssm_norm = 1 + random(self.n_values, seed=33) / 8

    def tokens(self, n, seed=0):
        """Decays run from nearly none to nearly all."""
        sizes = self.n_channels, self.n_heads * self.n_values, self.n_heads, self.n_heads
        scales = 1, 1, 4, 2
        return Tokens(
            *(np.float32(s) * random(n, m, seed=4 * seed + i) for i, (m, s) in enumerate(zip(sizes, scales, strict=True)))
        )

    def memories(self, slots=SLOTS):
        shape = self.n_groups, self.n_heads, self.width, self.n_values
        made = Memories(ConvMemory.empty(slots, self.n_taps, self.n_channels), DeltaMemory.empty(slots, *shape))
        for memory in made:
            for seed, field in enumerate(fields(memory)):
                array = getattr(memory, field.name)
                array[:] = random(*array.shape, seed=seed + 10)
        made.delta.k[:] = unit(made.delta.k)
        np.abs(np.tanh(made.delta.decay), out=made.delta.decay)
        return made

    def definition(self, tokens, rows, memories):
        """Return the expected output of the layer in float64, and update the state."""
        n = len(tokens)
        mixed, read = np.empty((n, self.n_channels)), np.empty((n, self.n_heads, self.n_values))
        causal_conv(tokens.mixed, self.taps, rows, memories.conv, out=mixed)
        gates = tokens.alpha, tokens.beta, self.ssm_a, self.ssm_dt
        gated_delta(mixed, *gates, rows, memories.delta, out=read)
        out = np.empty((n, self.n_heads * self.n_values))
        gated_rms_norm(read, tokens.gate, self.ssm_norm, EPS, out=out)
        return out

    def gpu(self, tokens, sequences, memories, *, parents=None, bucket=None, lengths=None, **options):
        """Run sequences that are all pending or all text on the GPU; the memories move on. `bucket` rows are launched."""
        import cupy

        from dflash.kernels.delta import cuda
        from dflash.kernels.gpu.batch import DeviceBatch

        rows = batch(sequences, parents=parents)
        if lengths is not None:
            rows = rows._replace(length=np.array(lengths, np.int32))
        n, room = len(tokens), bucket or len(tokens)
        on_device = DeviceBatch(room, len(sequences) + 1, rows.pages.shape[1])
        on_device.upload(np.zeros(n, np.int32), rows)
        arrays = [cupy.full((room, array.shape[1]), np.nan, np.float32) for array in tokens]
        for array, values in zip(arrays, tokens, strict=True):
            array[:n] = cupy.asarray(values)
        guarded = cupy.full((room + 2, self.n_heads * self.n_values), np.nan, np.float16)
        inputs = cuda.Inputs(*arrays, guarded[1:-1])
        values = (cupy.asarray(array) for array in (self.taps, self.ssm_a, self.ssm_dt, self.ssm_norm))
        there = [upload(memory) for memory in memories]
        common = inputs, cuda.MixerWeights(*values, EPS), on_device, *there
        if all(rows.prefill):
            shape = self.n_groups, self.n_heads, self.width, self.n_values
            scratch = cuda.PromptScratch(room, *shape, sequences=on_device.max_sequences)
            cuda.Prompt(*common, scratch, **options)(room)
        else:
            of_call = {name: options.pop(name) for name in ("n_sequences", "longest") if name in options}
            cuda.DeltaStep(*common, **options)(room, **of_call)
        for memory, moved in zip(memories, there, strict=True):
            download(moved, memory)
        out = guarded.get()
        assert np.isnan(out[0]).all(), "the row before the first is written"
        assert np.isnan(out[n + 1 :]).all(), "rows after the last are written"
        return out[1 : n + 1]

    def flush(self, sequences, memories):
        """Apply kept rows on the GPU, to two layers at a time."""
        from dflash.kernels.delta import cuda
        from dflash.kernels.gpu.batch import DeviceBatch

        there = [(upload(memories.conv), upload(memories.delta)) for _ in range(2)]
        cuda.Flush(there, DeviceBatch.of(batch(sequences)))()
        for pair in there:
            for memory, moved in zip(memories, pair, strict=True):
                download(moved, memory)
        return memories


def upload(memory):
    import cupy

    return type(memory)(**{field.name: cupy.asarray(getattr(memory, field.name)) for field in fields(memory)})


def download(there, memory):
    for field in fields(memory):
        getattr(memory, field.name)[:] = getattr(there, field.name).get()


def parts(sequences):
    """Sequences of text apart from pending ones: an op on the GPU takes only one kind. Lists may be empty."""
    return [[rows for rows in sequences if (rows.form == "prefill") == whole] for whole in (False, True)]


def single(n, slot=0, first_kept=()):
    """Sequences of one pending row each, one after another."""
    for i in range(n):
        yield Rows(1, "chain", slot, (0,) if i else first_kept, buffer=i % 2)
