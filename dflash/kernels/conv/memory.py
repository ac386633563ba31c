"""Inputs that the convolution of a layer stores for each slot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dflash.kernels.arrays import check, zeros
from dflash.kernels.ragged import PENDING


@dataclass(frozen=True, slots=True)
class ConvMemory:
    """Inputs that one layer's convolution stores for each slot, on the CPU or a GPU.

    tail: float32 (slots, K - 1, C); last inputs of the committed tokens, oldest first; zeros for an empty sequence.
    inputs: float32 (2, slots, P, C); inputs of the last pass, in the pending buffer that the pass wrote. P is the most
        pending rows of a sequence.
    """

    tail: Any
    inputs: Any

    def __post_init__(self) -> None:
        slots, rows, n_channels = self.tail.shape
        for name, shape in self.shapes(slots, rows + 1, n_channels, self.n_pending).items():
            check(name, getattr(self, name), shape)

    @property
    def n_pending(self) -> int:
        """Most pending rows of a sequence."""
        return self.inputs.shape[2]

    @staticmethod
    def shapes(slots: int, n_taps: int, n_channels: int, pending: int = PENDING) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array; the sizes are K, C and P."""
        return {"tail": (slots, n_taps - 1, n_channels), "inputs": (2, slots, pending, n_channels)}

    @classmethod
    def empty(
        cls, slots: int, n_taps: int, n_channels: int, zeros: Callable[..., Any] = zeros, *, pending: int = PENDING
    ) -> Self:
        """Allocate the inputs of `slots` empty sequences with ``zeros(*shape)``, by default on the CPU."""
        return cls(**{name: zeros(*shape) for name, shape in cls.shapes(slots, n_taps, n_channels, pending).items()})
