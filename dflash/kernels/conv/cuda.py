"""Stored inputs of a layer's convolution on a GPU; the kernels of the delta rule compute the convolution."""

from dataclasses import dataclass
from typing import Any, Self

import cupy

from dflash.kernels.arrays import check
from dflash.kernels.ragged import PENDING


def shapes(slots: int, n_taps: int, n_channels: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the arrays of a `Memory` by name; all are float32."""
    return {"tail": (slots, n_taps - 1, n_channels), "inputs": (2, slots, PENDING, n_channels)}


@dataclass(frozen=True, slots=True)
class Memory:
    """Inputs that one layer's convolution stores for each slot; the layout is the CPU's.

    Parameters
    ----------
    tail : float32 (slots, K - 1, C)
        Last inputs of the committed tokens, oldest first; zeros for an empty sequence.
    inputs : float32 (2, slots, PENDING, C)
        Inputs of the last pass, in the pending buffer that the pass wrote.

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
        """Allocate the inputs of `slots` empty sequences."""
        return cls(**{name: cupy.zeros(shape, cupy.float32) for name, shape in shapes(slots, n_taps, n_channels).items()})
