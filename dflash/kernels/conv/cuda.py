"""What the convolution of a layer remembers on a GPU; it is computed by the kernels of the delta rule."""

from dataclasses import dataclass
from typing import Any, Self

import cupy

from dflash.kernels.arrays import check
from dflash.kernels.ragged import PENDING


def shapes(slots: int, n_taps: int, n_channels: int) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a `Memory` by name, all float32."""
    return {"tail": (slots, n_taps - 1, n_channels), "inputs": (2, slots, PENDING, n_channels)}


@dataclass(frozen=True, slots=True)
class Memory:
    """What the conv of one layer remembers of each slot; the same as on the CPU.

    Parameters
    ----------
    tail : float32 (slots, K - 1, C)
        The last inputs of the text, the oldest first; zeros for an empty text.
    inputs : float32 (2, slots, PENDING, C)
        The inputs of the last pass, on the side that it wrote.

    Raises
    ------
    KernelError
        If an array is strided or of another shape.
    """

    tail: Any
    inputs: Any

    def __post_init__(self) -> None:
        slots, rows, n_channels = self.tail.shape
        for name, shape in shapes(slots, rows + 1, n_channels).items():
            check(name, getattr(self, name), shape)

    @classmethod
    def empty(cls, slots: int, n_taps: int, n_channels: int) -> Self:
        """Make the memory of `slots` empty texts."""
        return cls(**{name: cupy.zeros(shape, cupy.float32) for name, shape in shapes(slots, n_taps, n_channels).items()})
