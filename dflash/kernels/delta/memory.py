"""Recurrent state of a layer's delta rule for each slot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from dflash.errors import KernelError
from dflash.kernels.arrays import check, zeros
from dflash.kernels.ragged import PENDING

LANES = 16
_WIDEST = 256


@dataclass(frozen=True, slots=True)
class DeltaMemory:
    """Recurrent state of one layer's delta rule for each slot, on the CPU or a GPU: G key heads, H value heads.

    state: float32 (slots, H, V, K); state after the committed tokens, without accepted rows of the last pass; zeros for an
        empty sequence.
    k: float32 (2, slots, P, G, K); unit keys of the last pass, in the pending buffer that the pass wrote. P is the most
        pending rows of a sequence.
    u: float32 (2, slots, P, H, V); update that each of its rows adds along its key.
    decay: float32 (2, slots, P, H); decay factor of each of its rows, 0 to 1.
    Raises KernelError if an array is strided or of another shape, G does not divide H, or K or V is not a multiple of 16 up
        to 256.
    """

    state: Any
    k: Any
    u: Any
    decay: Any

    def __post_init__(self) -> None:
        n_groups, n_heads, width, n_values = self.sizes
        if n_groups < 1 or n_heads % n_groups:
            raise KernelError(f"delta: {n_heads} value heads are no multiple of {n_groups} key heads")
        for name, size in (("key", width), ("value", n_values)):
            if size % LANES or not 0 < size <= _WIDEST:
                raise KernelError(f"delta: {name} size {size} is no multiple of {LANES} up to {_WIDEST}")
        for name, shape in self.shapes(len(self.state), *self.sizes, self.n_pending).items():
            check(name, getattr(self, name), shape)

    @property
    def head_run(self) -> int:
        """Number of neighbouring value heads that share a key head: head `h` uses key head ``h // head_run % G``."""
        return 1

    @property
    def n_pending(self) -> int:
        """Most pending rows of a sequence."""
        return self.k.shape[2]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """Key heads G, value heads H, key size K and value size V."""
        _, n_heads, n_values, width = self.state.shape
        return self.k.shape[3], n_heads, width, n_values

    @staticmethod
    def shapes(
        slots: int, n_groups: int, n_heads: int, width: int, n_values: int, pending: int = PENDING
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of each array; the sizes are G, H, K, V and P."""
        return {
            "state": (slots, n_heads, n_values, width),
            "k": (2, slots, pending, n_groups, width),
            "u": (2, slots, pending, n_heads, n_values),
            "decay": (2, slots, pending, n_heads),
        }

    @classmethod
    def empty(
        cls,
        slots: int,
        n_groups: int,
        n_heads: int,
        width: int,
        n_values: int,
        zeros: Callable[..., Any] = zeros,
        *,
        pending: int = PENDING,
    ) -> Self:
        """Allocate the states of `slots` empty sequences with ``zeros(*shape)``, by default on the CPU."""
        shapes = cls.shapes(slots, n_groups, n_heads, width, n_values, pending)
        return cls(**{name: zeros(*shape) for name, shape in shapes.items()})


class GroupedDeltaMemory(DeltaMemory):
    """Recurrent state of a layer whose value heads of one key head are neighbours, where else key heads take turns."""

    __slots__ = ()

    @property
    def head_run(self) -> int:
        """Number of neighbouring value heads that share a key head: all ``H // G`` of it."""
        n_groups, n_heads, _, _ = self.sizes
        return n_heads // n_groups
