"""Recurrent state of a layer's delta rule on a GPU, and the arguments of its kernels."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.conv import cuda as conv
from dflash.kernels.ragged import PENDING


def shapes(slots: int, n_groups: int, n_heads: int, width: int, n_values: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a `Memory` by name; all are float32."""
    return {
        "state": (slots, n_heads, n_values, width),
        "k": (2, slots, PENDING, n_groups, width),
        "u": (2, slots, PENDING, n_heads, n_values),
        "decay": (2, slots, PENDING, n_heads),
    }


@dataclass(frozen=True, slots=True)
class Memory:
    """Recurrent state of one layer's delta rule, for each slot; the layout is the CPU's.

    Parameters
    ----------
    state : float32 (slots, H, V, K)
        State after the committed tokens, without accepted rows of the last pass; zeros for an empty sequence.
    k : float32 (2, slots, PENDING, G, K)
        Unit keys of the last pass, in the pending buffer that the pass wrote.
    u : float32 (2, slots, PENDING, H, V)
        Update that each of its rows adds along its key.
    decay : float32 (2, slots, PENDING, H)
        Decay factor of each of its rows, 0 to 1.

    Raises
    ------
    KernelError
        If an array is strided or of another shape, G does not divide H, or K or V is not a multiple of 16 up to 128.
    """

    state: Any
    k: Any
    u: Any
    decay: Any

    def __post_init__(self) -> None:
        slots, n_heads, n_values, width = self.state.shape
        n_groups = self.k.shape[3]
        if n_groups < 1 or n_heads % n_groups:
            raise KernelError(f"delta: {n_heads} value heads are no multiple of {n_groups} key heads")
        if width % 16 or n_values % 16 or not (0 < width <= 128 and 0 < n_values <= 128):
            raise KernelError(f"delta: key size {width} and value size {n_values} must be multiples of 16 up to 128")
        for name, shape in shapes(slots, n_groups, n_heads, width, n_values).items():
            check(name, getattr(self, name), shape)

    @classmethod
    def empty(cls, slots: int, n_groups: int, n_heads: int, width: int, n_values: int) -> Self:
        """Allocate the states of `slots` empty sequences; the sizes are G, H, K and V."""
        sizes = shapes(slots, n_groups, n_heads, width, n_values)
        return cls(**{name: cupy.zeros(shape, cupy.float32) for name, shape in sizes.items()})

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Key heads G, value heads H, key size K and value size V."""
        _, n_heads, n_values, width = self.state.shape
        return self.k.shape[3], n_heads, width, n_values


class Inputs(NamedTuple):
    """Rows of a layer on the device, C-contiguous.

    Parameters
    ----------
    mixed : float32 (T, 2 * G * K + H * V)
        Queries of all key heads, keys of all key heads, values of all value heads, before the convolution.
    gate : float32 (T, H * V)
    alpha, beta : float32 (T, H)
    out : float16 (T, H * V)
        Receives the result, clamped to 65504; may be given as uint16.
    """

    mixed: Any
    gate: Any
    alpha: Any
    beta: Any
    out: Any


class Weights(NamedTuple):
    """Weights of a layer on the device, float32.

    Parameters
    ----------
    taps : (K, C)
        Convolution weights, as `dflash.kernels.conv.taps` returns them.
    ssm_a, ssm_dt : (H,)
    ssm_norm : (V,)
    eps : float
        Added to the mean square in the norm.
    """

    taps: Any
    ssm_a: Any
    ssm_dt: Any
    ssm_norm: Any
    eps: float


@functools.cache
def most_shared(device: int) -> int:
    """Return the bytes of dynamic shared memory that a block may use."""
    return cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - 2048


def constants(conv_memory: conv.Memory, memory: Memory) -> dict[str, Any]:
    """Return the macros that a model fixes."""
    names = "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM", "TAPS"
    return dict(zip(names, (*memory.sizes, conv_memory.tail.shape[1] + 1), strict=True))


def rows_of(inputs: Inputs, weights: Weights, conv_memory: conv.Memory, memory: Memory) -> int:
    """Check that all arrays fit each other, and return their number of rows."""
    n_groups, n_heads, width, n_values = memory.sizes
    n, channels = len(inputs.mixed), 2 * n_groups * width + n_heads * n_values
    check("mixed", inputs.mixed, (n, channels))
    check("gate", inputs.gate, (n, n_heads * n_values))
    check("alpha", inputs.alpha, (n, n_heads))
    check("beta", inputs.beta, (n, n_heads))
    check("taps", weights.taps, (conv_memory.tail.shape[1] + 1, channels))
    check("ssm_a", weights.ssm_a, (n_heads,))
    check("ssm_dt", weights.ssm_dt, (n_heads,))
    check("ssm_norm", weights.ssm_norm, (n_values,))
    if inputs.out.shape != (n, n_heads * n_values):
        raise KernelError(f"out: wanted {(n, n_heads * n_values)}, got {inputs.out.shape}")
    if len(conv_memory.tail) != len(memory.state):
        raise KernelError(f"delta: {len(memory.state)} slots, but the convolution has {len(conv_memory.tail)}")
    return n


def step_arguments(
    inputs: Inputs, weights: Weights, batch: Any, conv_memory: conv.Memory, memory: Memory, readers: Any, read: Any
) -> tuple[Any, ...]:
    """Return the arguments of `step.cu` except the last two."""
    return (
        inputs.mixed, inputs.gate, inputs.alpha, inputs.beta, *weights, batch.counts, batch.first, batch.parent, batch.slot,
        batch.kept, batch.n_kept, batch.side, conv_memory.tail, conv_memory.inputs, memory.state, memory.k, memory.u,
        memory.decay, len(memory.state), readers, inputs.out, read,
    )  # fmt: skip
