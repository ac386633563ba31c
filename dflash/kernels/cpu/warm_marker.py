"""Kinds of models that have had all their kernels compiled on this machine: empty entries beside the compiled kernels."""

import hashlib

from dflash.kernels.cpu.jit import CACHE


def is_known(kind: str) -> bool:
    """Whether `remember` was called for this kind since the kernels last changed."""
    return CACHE.get(_marker(kind)) is not None


def remember(kind: str) -> None:
    """Note that all kernels of a kind of model are compiled, if the cache takes anything."""
    CACHE.put(_marker(kind), b"")


def _marker(kind: str) -> str:
    return f"known-{hashlib.sha256(kind.encode()).hexdigest()[:16]}"
