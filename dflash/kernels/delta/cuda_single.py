"""The mixer of a linear-attention layer on a GPU for one row of each of many sequences."""

from pathlib import Path
from typing import Any

from dflash.kernels.arrays import Stream
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu.capabilities import capabilities
from dflash.kernels.gpu.jit import kernel

LEAST_SEQUENCES = 8
"""Fewest sequences of one row each for which `SingleRows` is used: the fewest that were measured, where it is faster."""

_STATES, _PACKETS, _ACCEPTED = 2, 8, 8  # STATES, PACKETS and ACCEPTED_HERE of step_single.cu
_PRODUCERS = 4  # warps
_STATIC_SHARED = 1024  # bytes, more than step_single.cu declares


class SingleRows:
    """Convolution, delta rule and gated norm for one pending row of each sequence, with the bits of `DeltaStep`.

    arguments: those of step.cu up to `read_out`.
    split: blocks of a head in step.cu, whose norm adds one sum of squares for each.
    """

    def __init__(self, arguments: tuple[Any, ...], constants: dict[str, Any], memory: DeltaMemory, split: int) -> None:
        _, self._heads, _, n_values = memory.sizes
        made = kernel(Path(__file__).parent / "step_single.cu", "step_single", dependent=True, NORM_PARTS=split, **constants)
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
