"""Memory pools that sequences share: pages of keys and values, and slots of recurrent state."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dflash.errors import PoolExhausted
from dflash.kernels.arrays import release, zeros
from dflash.kernels.attention import compact
from dflash.kernels.conv.memory import ConvMemory
from dflash.kernels.delta.memory import DeltaMemory
from dflash.kernels.gpu.device import holding
from dflash.kernels.kv_types import kv_types
from dflash.kernels.ragged import PAGE
from dflash.model.config import Config


class Pools:
    """KV pages with reference counts, and recurrent slots.

    config: sizes of the model, which determine those of a page and a slot.
    pages: pages of `PAGE` positions in all.
    kv: types of keys and values, see `dflash.kernels.kv_types.kv_types`.
    backend: allocates the arrays, on the host by default.
    k, v: uint16, float32, int8 or uint8 (L, pages, PAGE, KV heads, stored elements of a head); KV caches of the attention
        layers, see `dflash.kernels.kv_types`. Where layers have heads of different numbers or sizes, those of the first
        one's shape; `layer_cache` returns any.
    delta: state of the convolution and of the delta rule of each linear-attention layer.
    pending: most pending rows of a sequence.
    free_pages, free_slots: numbers of free pages and slots.
    layout: text that differs between pools whose saved states differ in shape; empty on one device.
    """

    layout = ""

    def __init__(
        self, config: Config, *, pages: int, slots: int, kv: str = "f16", backend: "PoolBackend | None" = None
    ) -> None:
        backend = backend or HOST
        self.pages, self.slots, self.kv, self.pending = pages, slots, kv, config.pending
        self._shapes = config.kv_shapes
        self._caches = {
            shape: self._allocate_cache(backend, n, *shape)
            for shape, n in (Counter(self._shapes.values()) or {(config.kv_heads, config.head_size): 0}).items()
        }
        self.k, self.v = next(iter(self._caches.values()))
        self._states = self._allocate_recurrent(config, backend.zeros)
        self._backend = backend
        self._free_pages = list(range(pages - 1, -1, -1))
        self._free_slots = list(range(slots - 1, -1, -1))
        self._holders = [0] * pages
        self._used_slots = set[int]()

    def _allocate_cache(self, backend: "PoolBackend", n_layers: int, kv_heads: int, head_size: int) -> tuple[Any, Any]:
        shape = n_layers, self.pages, PAGE, kv_heads
        k, v = (backend.zeros(*shape, kind.head_elements(head_size), dtype=kind.dtype) for kind in kv_types(self.kv))
        return k, v

    def _allocate_recurrent(self, config: Config, zeros: Callable[..., Any]) -> list[Any]:
        """Set `conv` and `delta`; return the arrays of tails and states.

        One array holds a part of the memories of all layers, so that a snapshot takes two copies.
        """
        self.conv, self.delta, n = list[ConvMemory](), list[DeltaMemory](), sum(config.recurrent)
        self._recurrent = list[Any]()
        if n == 0:
            return []
        heads, size = (config.delta_key_heads, config.delta_value_heads), config.delta_size
        conv = ConvMemory.shapes(self.slots, config.conv_width, (2 * heads[0] + heads[1]) * size, self.pending)
        delta = DeltaMemory.shapes(self.slots, *heads, size, size, self.pending)
        arrays = {name: zeros(n, *shape) for name, shape in (conv | delta).items()}
        for i in range(n):
            self.conv.append(ConvMemory(**{name: arrays[name][i] for name in conv}))
            self.delta.append(config.delta_memory(**{name: arrays[name][i] for name in delta}))
        self._recurrent = list(arrays.values())
        return [arrays["tail"], arrays["state"]]

    @property
    def free_pages(self) -> int:
        """Number of free pages."""
        return len(self._free_pages)

    @property
    def caches(self) -> list[tuple[Any, Any]]:
        """Keys and values of each shape, and on each device: pairs of `k` and `v`."""
        return list(self._caches.values())

    def layer_cache(self, layer: int) -> tuple[Any, Any]:
        """Return keys and values of a trunk layer that has some of its own."""
        shape = self._shapes[layer]
        k, v = self._caches[shape]
        at = [other for other in self._shapes if self._shapes[other] == shape].index(layer)
        return k[at], v[at]

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page, all layers."""
        return sum(k.nbytes + v.nbytes for k, v in self.caches) // self.pages

    @property
    def free_slots(self) -> int:
        """Number of free slots."""
        return len(self._free_slots)

    def take_pages(self, n: int) -> list[int]:
        """Take `n` free pages; raise `PoolExhausted`, and take none, if there are fewer."""
        if n > len(self._free_pages):
            raise PoolExhausted(
                f"{n} KV pages of {PAGE} tokens are wanted, {len(self._free_pages)} of {self.pages} are free"
            )
        taken = [self._free_pages.pop() for _ in range(n)]
        for page in taken:
            self._holders[page] = 1
        return taken

    def share_pages(self, pages: list[int]) -> None:
        """Increment the reference count of each page."""
        for page in pages:
            self._holders[page] += 1

    def return_pages(self, pages: list[int]) -> None:
        """Decrement the reference count of each page; a page with count 0 becomes free."""
        for page in pages:
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free_pages.append(page)

    def n_holders(self, page: int) -> int:
        """Return the reference count of a page."""
        return self._holders[page]

    def copy_page(self, source: int, target: int) -> None:
        """Copy the keys and values of a page, all layers."""
        for cache in self.caches:
            for array in cache:
                with holding(array):
                    array[:, target] = array[:, source]

    def take_slot(self) -> int:
        """Take a free slot and reset its state to that of an empty sequence; raise `PoolExhausted` if there is none."""
        if not self._free_slots:
            raise PoolExhausted(f"all {self.slots} sequences are in use")
        slot = self._free_slots.pop()
        self._used_slots.add(slot)
        try:
            for kept in self.slot_views(slot):
                with holding(kept):
                    kept[:] = 0
        except BaseException:
            self._free_slots.append(slot)
            raise
        return slot

    def slot_views(self, slot: int) -> list[Any]:
        """Return views of the recurrent state of a slot."""
        return [array[:, slot] for array in self._states]

    def clone_slot(self, slot: int) -> list[Any]:
        """Return copies of the arrays of `slot_views`; raise `OutOfMemory` if they would take what passes need."""
        copies = []
        for array in self.slot_views(slot):
            with holding(array):
                self._backend.leave_room(array.nbytes)
                copies.append(self._backend.clone(array))
        return copies

    def empty_slot_copy(self) -> list[Any]:
        """Return arrays like those of `clone_slot`, with zeros; raise as it does."""
        copies = []
        for array in self.slot_views(0):
            with holding(array):
                self._backend.leave_room(array.nbytes)
                copies.append(self._backend.zeros(*array.shape, dtype=array.dtype))
        return copies

    def restore_slot(self, slot: int, copies: Sequence[Any]) -> None:
        """Set the recurrent state of a slot to the copies of `clone_slot`."""
        for array, was in zip(self.slot_views(slot), copies, strict=True):
            with holding(array):
                array[:] = was

    def compact(self, pages: list[int], length: int, path: list[int]) -> None:
        """Move the keys and values of the accepted rows `path` to consecutive positions from `length` on in `pages`."""
        where = np.array(pages, np.int32)
        for k, v in self.caches:
            if not k.size:
                continue  # a device without attention layers
            with holding(k):
                self._backend.compact(k, v, pages=where, length=length, path=np.array(path, np.int32))

    def return_slot(self, slot: int) -> None:
        """Return a slot to the free ones; once all are free, their memory to the system, if not only this one was used."""
        self._free_slots.append(slot)
        if len(self._free_slots) == self.slots and len(self._used_slots) > 1:
            self._used_slots.clear()
            for array in self._recurrent:
                self._backend.release(array)


class PoolBackend(NamedTuple):
    """Functions that allocate and move the arrays of a pool on one device.

    release: gives the memory of an array that `zeros` allocated back to the system, if that can be. The array stays usable,
        with undefined values.
    leave_room: called with the bytes of each copy of a state; raises `OutOfMemory` if the rest would be too little for
        passes, which allocate outputs of layers that drafts read, and graphs.
    """

    zeros: Callable[..., Any]
    compact: Callable[..., None]
    clone: Callable[[Any], Any]
    release: Callable[[Any], None]
    leave_room: Callable[[int], None]


def _any_room(_n_bytes: int) -> None:
    """Leave it to the system whether memory is short."""


HOST = PoolBackend(zeros, compact, np.copy, release, _any_room)
