"""What the delta rule of a layer remembers on a GPU, and the arrays that its kernels take."""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import cupy

from dflash.errors import KernelError
from dflash.kernels.arrays import check
from dflash.kernels.conv import cuda as conv
from dflash.kernels.ragged import PENDING


def shapes(slots: int, n_groups: int, n_heads: int, width: int, n_values: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a `Memory` by name, all float32."""
    return {
        "state": (slots, n_heads, n_values, width),
        "k": (2, slots, PENDING, n_groups, width),
        "u": (2, slots, PENDING, n_heads, n_values),
        "decay": (2, slots, PENDING, n_heads),
    }


@dataclass(frozen=True, slots=True)
class Memory:
    """What the delta rule of one layer remembers of each slot; the same as on the CPU.

    Parameters
    ----------
    state : float32 (slots, H, V, K)
        The memory itself, as the text left it (rows of the last pass that were kept come on top); zeros for an empty text.
    k : float32 (2, slots, PENDING, G, K)
        Unit keys of the last pass, on the side that it wrote.
    u : float32 (2, slots, PENDING, H, V)
        What each row of it adds along its key.
    decay : float32 (2, slots, PENDING, H)
        The part of the memory that each row of it keeps, 0 to 1.

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
        """Make the memory of `slots` empty texts, with G, H, K, V as given."""
        sizes = shapes(slots, n_groups, n_heads, width, n_values)
        return cls(**{name: cupy.zeros(shape, cupy.float32) for name, shape in sizes.items()})

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """G, H, K, V."""
        _, n_heads, n_values, width = self.state.shape
        return self.k.shape[3], n_heads, width, n_values


class Inputs(NamedTuple):
    """Rows of a layer on the device, C-contiguous.

    Parameters
    ----------
    mixed : float32 (T, 2 * G * K + H * V)
        Queries of all key heads, keys of all key heads, values of all value heads, before the conv.
    gate : float32 (T, H * V)
    alpha, beta : float32 (T, H)
    out : float16 (T, H * V)
        Where the result goes, beyond 65504 as 65504; may be given as its bits (uint16).
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
        As `dflash.kernels.conv.taps` makes them.
    ssm_a, ssm_dt : (H,)
    ssm_norm : (V,)
    eps : float
        Of the norm.
    """

    taps: Any
    ssm_a: Any
    ssm_dt: Any
    ssm_norm: Any
    eps: float


@functools.cache
def most_shared(device: int) -> int:
    """Bytes of dynamic shared memory that a block may have."""
    return cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"] - 2048


def constants(conv_memory: conv.Memory, memory: Memory) -> dict[str, int]:
    """Macros of a model."""
    names = "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM", "TAPS"
    return dict(zip(names, (*memory.sizes, conv_memory.tail.shape[1] + 1), strict=True))


def rows_of(inputs: Inputs, weights: Weights, conv_memory: conv.Memory, memory: Memory) -> int:
    """How many rows the arrays have, once all are found to fit."""
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
        raise KernelError(f"delta: {len(memory.state)} slots, but {len(conv_memory.tail)} of the conv")
    return n


def step_arguments(
    inputs: Inputs, weights: Weights, batch: Any, conv_memory: conv.Memory, memory: Memory, readers: Any, read: Any
) -> tuple[Any, ...]:
    """What `step.cu` takes, but the last two numbers."""
    return (
        inputs.mixed, inputs.gate, inputs.alpha, inputs.beta, *weights, batch.counts, batch.first, batch.parent, batch.slot,
        batch.kept, batch.n_kept, batch.side, conv_memory.tail, conv_memory.inputs, memory.state, memory.k, memory.u,
        memory.decay, len(memory.state), readers, inputs.out, read,
    )  # fmt: skip
