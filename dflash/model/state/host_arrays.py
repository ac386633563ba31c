"""Copies of KV pages and recurrent states in host memory, and pages made from them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dflash.errors import FormatError
from dflash.kernels.gpu import device
from dflash.kernels.ragged import PAGE
from dflash.model.state.pools import Pools

HostArrays = dict[str, NDArray[Any]]
"""Arrays of a saved state by name."""


def to_host(values: Any) -> NDArray[Any]:
    """Return a device array as an array on the host, after all work of the stream; a host array as it is."""
    with device.holding(values):
        return values if isinstance(values, np.ndarray) else values.get()


def placed_like(values: NDArray[Any], like: Any) -> Any:
    """Return a copy of a host array, on the device of another array."""
    with device.holding(like):
        return np.array(values) if isinstance(like, np.ndarray) else device.array(values)


def checked(arrays: Mapping[str, NDArray[Any]], name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Return an array of a saved state; raise `FormatError` if it is missing or has another shape or type."""
    found = arrays.get(name)
    if found is None or found.shape != shape or found.dtype != dtype:
        what = "is missing" if found is None else f"is {found.dtype} {found.shape}"
        raise FormatError(f"saved state: {name} {what}, wanted {np.dtype(dtype)} {shape}")
    return found


def copy_pages(pools: Pools, pages: list[int], length: int) -> HostArrays:
    """Copy the first `length` positions of some pages to the host.

    Returns: ``k`` and ``v`` (L, length, KV heads, stored elements of a head), in the types of the pools; ``k.1`` and ``v.1``
        those of a second device, and so on.

    Pages are copied one after another, so that a GPU needs memory for a copy of one page only.
    """
    found = {}
    for name, pool in _caches(pools):
        layers, _, _, *row = pool.shape
        found[name] = np.empty((layers, length, *row), pool.dtype)
        for i, page in enumerate(pages):
            part = found[name][:, i * PAGE : (i + 1) * PAGE]
            part[...] = to_host(pool[:, page, : part.shape[1]])
    return found


def write_pages(pools: Pools, arrays: Mapping[str, NDArray[Any]], length: int, shared: Sequence[int] = ()) -> list[int]:
    """Share some pages that hold the first positions, write the other ones of `copy_pages` into new pages, return all."""
    copies = []
    for name, pool in _caches(pools):
        layers, _, _, *row = pool.shape
        copies.append((pool, checked(arrays, name, (layers, length, *row), pool.dtype)))
    pages = pools.take_pages(-(-length // PAGE) - len(shared))
    try:
        for pool, copy in copies:
            for i, page in enumerate(pages, len(shared)):
                part = copy[:, i * PAGE : (i + 1) * PAGE]
                with device.holding(pool):
                    pool[:, page, : part.shape[1]] = placed_like(part, pool)
    except BaseException:
        pools.return_pages(pages)
        raise
    pools.share_pages([*shared])
    return [*shared, *pages]


def copy_slot(pools: Pools, slot: int) -> HostArrays:
    """Copy the recurrent state of a slot to the host, layer by layer, as ``recurrent.0`` and so on."""
    found = {}
    for i, view in enumerate(pools.slot_views(slot)):
        found[f"recurrent.{i}"] = copy = np.empty(view.shape, view.dtype)
        for part, layer in zip(copy, view, strict=True):
            part[...] = to_host(layer)
    return found


def write_slot(pools: Pools, slot: int, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write the arrays of `copy_slot` into a slot; raise `FormatError` if they do not fit."""
    for i, view in enumerate(pools.slot_views(slot)):
        for layer, part in zip(view, checked(arrays, f"recurrent.{i}", view.shape, view.dtype), strict=True):
            with device.holding(layer):
                layer[...] = placed_like(part, layer)


def _caches(pools: Pools) -> list[tuple[str, Any]]:
    """Return the caches of all devices by the names of their copies."""
    named = []
    for number, (k, v) in enumerate(pools.caches):
        end = f".{number}" if number else ""
        named += [(f"k{end}", k), (f"v{end}", v)]
    return named
