"""The mixer of a linear-attention layer on a GPU for one row of each sequence: of few, or of many."""

from pathlib import Path
from typing import Any

from dflash.kernels.arrays import Stream
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel
from dflash.kernels.gpu.launch import RowLaunch

LEAST_SEQUENCES = 8
"""Fewest sequences of one row each for which `ThroughputStep` is used: the fewest that were measured, where it is faster."""

_STATES, _PACKETS, _ACCEPTED = 2, 8, 8  # STATES, PACKETS and ACCEPTED_HERE of step_throughput.cu
_PRODUCERS = 4  # warps
_STATIC_SHARED = 1024  # bytes, more than step_throughput.cu declares


class ThroughputStep:
    """Convolution, delta rule and gated norm for one pending row of each sequence, with the bits of `DeltaStep`.

    arguments: those of step.cu up to `read_out`.
    split: blocks of a head in step.cu, whose norm adds one sum of squares for each.
    """

    def __init__(self, arguments: tuple[Any, ...], constants: dict[str, Any], memory: DeltaMemory, split: int) -> None:
        _, self._heads, _, n_values = memory.sizes
        made = kernel(
            Path(__file__).parent / "step_throughput.cu", "step_throughput", dependent=True, NORM_PARTS=split, **constants
        )
        parent, read = 11, len(arguments) - 1
        given = [argument for i, argument in enumerate(arguments) if i not in (parent, read)]
        self._run = made.bind(1, 32 * (n_values // 16 + _PRODUCERS), given, shared_bytes(memory))

    @staticmethod
    def fits(memory: DeltaMemory, sequences: int) -> bool:
        """Return whether the current GPU has the kernel for these sizes, and there may be enough sequences."""
        about, (_, _, width, n_values) = capabilities(), memory.sizes
        aligned = width % 32 == 0 and n_values % 32 == 0 and width <= 128
        room = about.block_shared - _STATIC_SHARED
        return about.has_clusters and aligned and sequences >= LEAST_SEQUENCES and shared_bytes(memory) <= room

    def __call__(self, sequences: int, stream: Stream = None) -> None:
        """Run with blocks for this number of sequences; any number gives the same result."""
        self._run(stream, grid=min(capabilities().processors, sequences * self._heads))


def shared_bytes(memory: DeltaMemory) -> int:
    """Return the dynamic shared memory of a block."""
    _, _, width, n_values = memory.sizes
    packet = 2 * width + 2 * n_values + _ACCEPTED * (width + n_values + 1) + 8
    return 4 * (_STATES * width * n_values + _PACKETS * packet)


_PARENT, _FIRST = 11, 10  # arguments of step.cu that one row does not need


class LatencyStep(RowLaunch):
    """Convolution, delta rule and gated norm for one pending row of each sequence, with the bits of `DeltaStep`.

    In use for fewer than `LEAST_SEQUENCES` sequences; `ThroughputStep` is for more.

    parts: `split` of `ThroughputStep`.
    fused: the norm is part of the launch of step.cu; else it is that of gated_norm.cu.

    Latency-bound: less than half of the machine code of step.cu, and no pipeline between warps.
    """

    def __init__(
        self, arguments: tuple[Any, ...], constants: dict[str, Any], memory: DeltaMemory, parts: int, *, fused: bool
    ) -> None:
        _, n_heads, width, n_values = memory.sizes
        split, parts = (parts, parts) if fused else (1, 1)
        own = n_values // split
        macros = constants | {"SPLIT": split, "NORM_PARTS": parts, "SEPARATE_NORM": int(not fused)}
        run = kernel(Path(__file__).parent / "step_latency.cu", "step_latency", dependent=True, **macros)
        given = [argument for i, argument in enumerate(arguments[:-1]) if i not in (_PARENT, _FIRST)]
        super().__init__(run.bind((split, n_heads, 1), threads_of(own, width), given), split, n_heads)


def threads_of(own: int, width: int) -> int:
    """Return the threads of a block with `own` value rows and keys of `width` elements, as in step_latency.cu."""
    state = 4 * own
    return state + 32 + (32 * -(-own // 32) if 2 * width + own > state else 0)
