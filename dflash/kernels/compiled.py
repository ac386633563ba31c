"""Which kinds of models have had all their kernels compiled on this machine: empty files beside numba's cache."""

import hashlib
from contextlib import suppress
from pathlib import Path

import numba

import dflash.kernels.numba_jit  # noqa: F401 - it says where the cache is


def is_known(kind: str) -> bool:
    """Whether `remember` was called for this kind since the kernels last changed."""
    return _marker(kind).exists()


def remember(kind: str) -> None:
    """Note that all kernels of a kind of model are compiled; where nothing can be written, nothing is."""
    with suppress(OSError):
        _marker(kind).touch()


def _marker(kind: str) -> Path:
    return Path(numba.config.CACHE_DIR) / f"known-{hashlib.sha256(kind.encode()).hexdigest()[:16]}"
