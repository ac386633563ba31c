"""State of a draft model for each sequence: keys and values of its context, in ring buffers."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from dflash.errors import DFlashError, PoolExhausted
from dflash.kernels.arrays import zeros
from dflash.kernels.gpu.device import holding
from dflash.kernels.kv_types import KV_TYPES
from dflash.model.draft.config import DraftConfig
from dflash.model.state.host_arrays import HostArrays, checked, placed_like, to_host

_STEP = 64
"""Positions to a multiple of which rings are padded."""

DEFAULT_CONTEXT = 4096
"""Last positions that layers without a window see, unless the caller gives another number."""


def places(config: DraftConfig, context: int) -> int:
    """Return the positions that the ring of a sequence must hold. context: positions that layers without a window see."""
    most = max(window or context for window in config.windows)
    return -(-max(most, 1) // _STEP) * _STEP


class Rings:
    """Keys and values of the contexts of all sequences; each sequence owns one slot.

    size: positions kept for each.
    k, v: uint16 or float32 (L, slots, C, KV, D); keys and values; uint16 holds the bits of float16. Position p is stored at
        index ``p % C``.
    """

    def __init__(self, config: DraftConfig, slots: int, size: int, kv: str, *, zeros: Callable[..., Any] = zeros) -> None:
        shape = config.n_layers, slots, size, config.kv_heads, config.head_size
        self.k, self.v = (zeros(*shape, dtype=KV_TYPES[kv].dtype) for _ in range(2))
        self.slots, self.size = slots, size
        self._reach = [min(size, window or size) for window in config.windows]
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of free slots."""
        return len(self._free)

    def take(self) -> int:
        """Take a free slot; raise `PoolExhausted` if there is none."""
        if not self._free:
            raise PoolExhausted(f"all {self.slots} texts of the draft model are in use")
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """Return a slot to the free ones."""
        self._free.append(slot)

    def copy(self, slot: int, begin: int, length: int) -> list[NDArray[Any]]:
        """Copy, layer by layer, the positions of ``begin .. length - 1`` that later rows can still attend to."""
        with holding(self.k):
            return [
                ring[layer, slot, self._seen(layer, begin, length)]
                for layer in range(len(self._reach))
                for ring in (self.k, self.v)
            ]

    def paste(self, slot: int, begin: int, length: int, copies: list[NDArray[Any]]) -> None:
        """Write copies made by `copy` into a slot."""
        kept = iter(copies)
        with holding(self.k):
            for layer in range(len(self._reach)):
                where = self._seen(layer, begin, length)
                for ring in (self.k, self.v):
                    ring[layer, slot, where] = next(kept)

    def snapshot_from_host(self, arrays: Mapping[str, NDArray[Any]]) -> "DraftSnapshot":
        """Return a snapshot with the content of `DraftSnapshot.host_arrays`; raise `FormatError` if it does not fit."""
        begin, length = checked(arrays, "range", (2,), np.int64).tolist()
        copies = []
        for i in range(2 * len(self._reach)):
            shape = len(self._seen(i // 2, begin, length)), *self.k.shape[3:]
            copies.append(placed_like(checked(arrays, f"copy.{i}", shape, self.k.dtype), self.k))
        return DraftSnapshot(begin, length, copies)

    def _seen(self, layer: int, begin: int, length: int) -> NDArray[np.intp]:
        return np.arange(max(begin, length - self._reach[layer]), length) % self.size


class DraftSnapshot:
    """Copy of a state, to which it or another state can be restored."""

    def __init__(self, begin: int, length: int, copies: list[NDArray[Any]]) -> None:
        self.begin, self.length = begin, length
        self._copies: list[NDArray[Any]] | None = copies

    @property
    def n_bytes(self) -> int:
        """Bytes of the copies."""
        return sum(array.nbytes for array in self._copies or ())

    @property
    def copies(self) -> list[NDArray[Any]]:
        """Copies of keys and values; raises `DFlashError` once the snapshot is closed."""
        if self._copies is None:
            raise DFlashError("restore: the snapshot of the draft is closed")
        return self._copies

    def host_arrays(self) -> HostArrays:
        """Copy the snapshot to the host, as ``range``, int64 (2,): begin and length; and ``copy.0`` and so on."""
        copies = {f"copy.{i}": to_host(array) for i, array in enumerate(self.copies)}
        return {"range": np.array([self.begin, self.length], np.int64)} | copies

    def close(self) -> None:
        """Release the copies; later calls have no effect."""
        self._copies = None


class DraftState:
    """Context of one sequence.

    length: position of the next token to read; positions ``begin .. length - 1`` have been read.
    """

    def __init__(self, rings: Rings, begin: int = 0) -> None:
        self.slot = rings.take()
        self.begin = self.length = begin
        self._rings: Rings | None = rings

    @property
    def closed(self) -> bool:
        """True once `close` was called."""
        return self._rings is None

    @property
    def rings(self) -> Rings:
        """Rings that hold the context; raises `DFlashError` once the state is closed."""
        if self._rings is None:
            raise DFlashError("the draft's state of this sequence is closed")
        return self._rings

    def snapshot(self) -> DraftSnapshot:
        """Copy the context."""
        return DraftSnapshot(self.begin, self.length, self.rings.copy(self.slot, self.begin, self.length))

    def restore(self, snapshot: DraftSnapshot) -> Self:
        """Return to a snapshot of this state or of another one of the same draft model."""
        self.rings.paste(self.slot, snapshot.begin, snapshot.length, snapshot.copies)
        self.begin, self.length = snapshot.begin, snapshot.length
        return self

    def close(self) -> None:
        """Return the slot; later calls have no effect."""
        if self._rings is not None:
            self._rings.give_back(self.slot)
            self._rings = None
