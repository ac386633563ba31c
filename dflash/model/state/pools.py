"""The memory that sequences share: pages of keys and values, and slots of recurrent state."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dflash.errors import PoolExhausted
from dflash.kernels import conv, delta
from dflash.kernels.arrays import zeros
from dflash.kernels.attention import compact
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config

KV_TYPES = {"f16": np.uint16, "f32": np.float32}
"""What keys and values are stored as; halves as their bits."""


class Pools:
    """Pages and slots, counted.

    Parameters
    ----------
    config : Config
        What a page and a slot must hold.
    pages : int
        Pages of `PAGE` positions in all.
    slots : int
        Sequences that may live at a time.
    kv : str
        A key of `KV_TYPES`.
    backend : Backend
        Where the arrays lie.

    Attributes
    ----------
    k, v : uint16 or float32 (L, pages, PAGE, KV heads, head size)
        Caches of the attention layers.
    conv, delta : list of Memory
        What the convolution and the delta rule of each linear-attention layer remember.
    free_pages, free_slots : int
        What nobody holds.
    """

    def __init__(self, config: Config, *, pages: int, slots: int, kv: str = "f16", backend: "Backend | None" = None) -> None:
        backend = backend or HOST
        attention_layers = config.n_layers - sum(config.recurrent)
        shape = (attention_layers, pages, PAGE, config.kv_heads, config.head_size)
        self.pages, self.slots, self.kv = pages, slots, kv
        self.k, self.v = (backend.zeros(*shape, dtype=KV_TYPES[kv]) for _ in range(2))
        self.conv, self.delta, self._slot_views = backend.memories(config, slots)
        self._backend = backend
        self._free_pages = list(range(pages - 1, -1, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        self._holders = [0] * pages

    @property
    def free_pages(self) -> int:
        """Pages that nobody holds."""
        return len(self._free_pages)

    @property
    def free_slots(self) -> int:
        """Slots that nobody holds."""
        return len(self._free_slots)

    def take_pages(self, n: int) -> list[int]:
        """Lend `n` pages, or none: `PoolExhausted`."""
        if n > len(self._free_pages):
            raise PoolExhausted(
                f"{n} KV pages of {PAGE} tokens are wanted, {len(self._free_pages)} of {self.pages} are free"
            )
        taken = [self._free_pages.pop() for _ in range(n)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share_pages(self, pages: list[int]) -> None:
        """Count one more holder of each page."""
        for page in pages:
            self._holders[page] += 1

    def return_pages(self, pages: list[int]) -> None:
        """Count one holder less; a page without holders is free."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free_pages.append(page)

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of all layers."""
        self.k[:, target] = self.k[:, source]
        self.v[:, target] = self.v[:, source]

    def take_slot(self) -> int:
        """Lend a slot whose state is that of an empty text."""
        if not self._free_slots:
            raise PoolExhausted(f"all {self.slots} sequences are in use")
        slot = self._free_slots.pop()
        try:
            for kept in self.slot_views(slot):
                kept[:] = 0
        except BaseException:
            self._free_slots.append(slot)
            raise
        return slot

    def slot_views(self, slot: int) -> list[Any]:
        """Views of all that a slot knows of its committed text beside keys and values."""
        return self._slot_views(slot)

    def clone_slot(self, slot: int) -> list[Any]:
        """Copies of what `slot_views` gives."""
        return [self._backend.clone(array) for array in self.slot_views(slot)]

    def compact(self, pages: list[int], length: int, path: list[int]) -> None:
        """Move the keys and values of an accepted path to where its text stands, `length` tokens into `pages`."""
        where = np.array(pages, np.int32)
        self._backend.compact(self.k, self.v, pages=where, length=length, path=np.array(path, np.int32))

    def return_slot(self, slot: int) -> None:
        """Take a slot back."""
        self._free_slots.append(slot)


class Memories(NamedTuple):
    """What the linear-attention layers remember.

    Parameters
    ----------
    conv, delta : list of Memory
        One a layer.
    slot_views : callable
        From a slot to views of all that it holds of its committed text.
    """

    conv: list[Any]
    delta: list[Any]
    slot_views: Callable[[int], list[Any]]

    @classmethod
    def on_host(cls, config: Config, slots: int) -> "Memories":
        """Make those of `slots` empty texts."""
        n, size = sum(config.recurrent), config.delta_size
        heads = config.delta_key_heads, config.delta_value_heads
        channels = (2 * heads[0] + heads[1]) * size
        convs = [conv.Memory.empty(slots, config.conv_width, channels) for _ in range(n)]
        deltas = [delta.Memory.empty(slots, *heads, size, size) for _ in range(n)]

        def slot_views(slot: int) -> list[Any]:
            return [memory.tail[slot] for memory in convs] + [memory.state[slot] for memory in deltas]

        return cls(convs, deltas, slot_views)


class Backend(NamedTuple):
    """Where the arrays of a pool lie.

    Parameters
    ----------
    zeros : callable
        ``zeros(*shape, dtype=)``.
    memories : callable
        ``memories(config, slots)`` gives `Memories`.
    compact : callable
        As `dflash.kernels.attention.compact`.
    clone : callable
        A copy of an array.
    """

    zeros: Callable[..., Any]
    memories: Callable[[Config, int], Memories]
    compact: Callable[..., None]
    clone: Callable[[Any], Any]


HOST = Backend(zeros, Memories.on_host, compact, np.copy)
