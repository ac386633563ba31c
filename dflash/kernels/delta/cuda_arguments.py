"""Arguments of the kernels of a linear-attention layer on a GPU, and their checks."""

from typing import Any, NamedTuple

from dflash.errors import KernelError
from dflash.kernels.arrays import GpuArray, check
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu.capabilities import capabilities

_STATIC_SHARED = 3200  # bytes; step.cu declares 2800 to 3120
_WIDEST = 128  # largest key and value size: a block holds 64 x 128 elements of a state in registers


class Inputs(NamedTuple):
    """Rows of a layer on the device, C-contiguous.

    mixed: float32 (T, 2 * G * K + H * V); queries of all key heads, keys of all key heads, values of all value heads, before
        the convolution.
    gate: float32 (T, H * V)
    alpha, beta: float32 (T, H)
    out: float16 (T, H * V); receives the result, clamped to 65504; may be given as uint16.
    """

    mixed: GpuArray
    gate: GpuArray
    alpha: GpuArray
    beta: GpuArray
    out: GpuArray


class MixerWeights(NamedTuple):
    """Weights of a layer on the device, float32.

    taps: convolution weights, as `dflash.kernels.conv.taps` returns them.
    """

    taps: GpuArray
    ssm_a: GpuArray
    ssm_dt: GpuArray
    ssm_norm: GpuArray
    eps: float


def most_shared() -> int:
    """Return the bytes of dynamic shared memory that a block may use."""
    return capabilities().block_shared - _STATIC_SHARED


def constants(conv_memory: ConvMemory, memory: DeltaMemory) -> dict[str, Any]:
    """Return the macros that a model fixes; raise `KernelError` if K or V is larger than the kernels allow."""
    _, _, width, n_values = memory.sizes
    if max(width, n_values) > _WIDEST:
        raise KernelError(f"delta: key and value size must be at most {_WIDEST} on a GPU, got {width} and {n_values}")
    names = "KEY_HEADS", "VALUE_HEADS", "KEY_DIM", "VALUE_DIM", "HEAD_RUN", "STORED_ROWS", "TAPS"
    sizes = *memory.sizes, memory.head_run, memory.n_pending, conv_memory.tail.shape[1] + 1
    return dict(zip(names, sizes, strict=True))


def rows_of(inputs: Inputs, weights: MixerWeights, conv_memory: ConvMemory, memory: DeltaMemory) -> int:
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
    if conv_memory.n_pending != memory.n_pending:
        raise KernelError(f"delta: {memory.n_pending} pending rows, but the convolution has {conv_memory.n_pending}")
    return n


def step_arguments(
    inputs: Inputs,
    weights: MixerWeights,
    batch: Any,
    conv_memory: ConvMemory,
    memory: DeltaMemory,
    readers: Any,
    read: GpuArray,
) -> tuple[Any, ...]:
    """Return the arguments of `step.cu` except the last two."""
    return (
        inputs.mixed, inputs.gate, inputs.alpha, inputs.beta, *weights, batch.counts, batch.row_starts, batch.parent,
        batch.slot, batch.accepted, batch.n_accepted, batch.buffer, conv_memory.tail, conv_memory.inputs, memory.state,
        memory.k, memory.u, memory.decay, len(memory.state), readers, inputs.out, read,
    )  # fmt: skip
