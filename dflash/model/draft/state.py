"""What a draft remembers of a text: keys and values of its context, in rings."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError, PoolExhausted
from dflash.kernels.arrays import zeros
from dflash.model.draft.config import DraftConfig
from dflash.model.state.pools import KV_TYPES

_STEP = 64
DEFAULT_CONTEXT = 4096


def places(config: DraftConfig, context: int) -> int:
    """Positions that the ring of a text must hold.

    Parameters
    ----------
    config : DraftConfig
    context : int
        Positions that layers without a window are to see.
    """
    most = max(window or context for window in config.windows)
    return -(-max(most, 1) // _STEP) * _STEP


class Rings:
    """The context of all texts, counted by slot.

    Parameters
    ----------
    config : DraftConfig
    slots : int
        Texts at a time.
    size : int
        Positions of each.
    kv : str
        A key of `KV_TYPES`.
    zeros : callable
        Makes arrays: ``zeros(*shape, dtype=)``.

    Attributes
    ----------
    k, v : uint16 or float32 (L, slots, C, KV, D)
        Halves as their bits; position p lies at place ``p % C``.
    """

    def __init__(self, config: DraftConfig, slots: int, size: int, kv: str, *, zeros: Callable[..., Any] = zeros) -> None:
        shape = config.n_layers, slots, size, config.kv_heads, config.head_size
        self.k, self.v = (zeros(*shape, dtype=KV_TYPES[kv]) for _ in range(2))
        self.slots, self.size = slots, size
        self._reach = [min(size, window or size) for window in config.windows]
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """Lend a slot, or `PoolExhausted`."""
        if not self._free:
            raise PoolExhausted(f"all {self.slots} texts of the draft model are in use")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Take a slot back."""
        self._free.append(slot)

    def copy(self, slot: int, begin: int, length: int) -> list[NDArray[Any]]:
        """Copies of what later rows may still see of positions ``begin .. length - 1``, layer by layer."""
        return [
            ring[layer, slot, self._seen(layer, begin, length)]
            for layer in range(len(self._reach))
            for ring in (self.k, self.v)
        ]

    def paste(self, slot: int, begin: int, length: int, copies: list[NDArray[Any]]) -> None:
        """Put such copies into a slot."""
        kept = iter(copies)
        for layer in range(len(self._reach)):
            where = self._seen(layer, begin, length)
            for ring in (self.k, self.v):
                ring[layer, slot, where] = next(kept)

    def _seen(self, layer: int, begin: int, length: int) -> NDArray[np.intp]:
        return np.arange(max(begin, length - self._reach[layer]), length) % self.size


class DraftSnapshot:
    """A place in a text to come back to.

    Attributes
    ----------
    begin, length : int
        As of the state.
    """

    def __init__(self, begin: int, length: int, copies: list[NDArray[Any]]) -> None:
        self.begin, self.length = begin, length
        self._copies: list[NDArray[Any]] | None = copies

    @property
    def copies(self) -> list[NDArray[Any]]:
        """What the rings held; an error once it is closed."""
        if self._copies is None:
            raise DFlashError("restore: the snapshot of the draft is closed")
        return self._copies

    def close(self) -> None:
        """Let go of it; harmless if done before."""
        self._copies = None


class DraftState:
    """The context of one text.

    Parameters
    ----------
    rings : Rings
        Where its slot comes from.
    begin : int
        First position that it will see.

    Attributes
    ----------
    length : int
        Position of the next token that it reads; it has seen ``begin .. length - 1``.
    """

    def __init__(self, rings: Rings, begin: int = 0) -> None:
        self.slot = rings.take()
        self.begin = self.length = begin
        self._rings: Rings | None = rings

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._rings is None

    @property
    def rings(self) -> Rings:
        """Where its context lies; an error once the state is closed."""
        if self._rings is None:
            raise DFlashError("the draft's state of this text is closed")
        return self._rings

    def snapshot(self) -> DraftSnapshot:
        """Remember what it has seen."""
        return DraftSnapshot(self.begin, self.length, self.rings.copy(self.slot, self.begin, self.length))

    def restore(self, snapshot: DraftSnapshot) -> Self:
        """Stand again where a snapshot was taken, of this text or of another of the same draft.

        Raises
        ------
        DFlashError
            If the snapshot is closed.
        """
        self.rings.paste(self.slot, snapshot.begin, snapshot.length, snapshot.copies)
        self.begin, self.length = snapshot.begin, snapshot.length
        return self

    def close(self) -> None:
        """Give the slot back; harmless if done before."""
        if self._rings is not None:
            self._rings.give_back(self.slot)
            self._rings = None
