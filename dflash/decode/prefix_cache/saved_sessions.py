"""Sessions saved in files by name: the state after a prompt, for the prefix cache of a later process."""

import os
import re
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dflash.decode.drafting.drafter import Drafter
from dflash.decode.prefix_cache.cache import PrefixCache
from dflash.decode.prefix_cache.disk import SavedState
from dflash.decode.prefix_cache.disk.identity import identity_of
from dflash.errors import RequestError
from dflash.model.loading.target import Loaded

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_EXTRA = 4 << 20
"""Bytes of a file beyond the state, which must fit the prefix cache: header, and ids of a million tokens."""


class SavedSessions:
    """Saves and loads entries of a model's prefix cache.

    cache: none if the model has no prefix cache; then every call raises an error.
    call: runs a function in the thread that owns the model, and returns its result.
    """

    def __init__(self, loaded: Loaded, cache: PrefixCache | None, call: Callable[[Callable[[], Any]], Any]) -> None:
        self._loaded, self._maybe_cache, self._call = loaded, cache, call

    def check(self, name: str | os.PathLike[str]) -> Path:
        """Return the path of a name."""
        disk = self._cache.disk
        if isinstance(name, os.PathLike):
            return Path(name)
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise RequestError(
                f"session: {name!r:.120} must be 1 to 100 letters, digits and ._- that begin with a letter or digit, "
                "or a pathlib.Path"
            )
        if disk is None:
            raise RequestError(
                f"session: the name {name!r} needs a folder: load the model with prefix_cache_folder=..., or give a Path"
            )
        return disk.folder.path / f"session-{name}.safetensors"

    def save(self, path: Path, ids: list[int], drafter: Drafter) -> int:
        """Write the longest entry of the prefix cache that is a prefix of ids; return the number of its tokens.

        The entry is written with the state of `drafter`, if it has one.
        """
        saved = self._call(lambda: self._copy(np.array(ids[:-1], np.int32), drafter))
        if saved is None:
            raise RequestError(
                f"session: the prefix cache of {self._cache.capacity} bytes holds no state for this prompt of {len(ids)} "
                "tokens; use a longer prompt or a larger prefix_cache"
            )
        try:
            saved.write(path)
        except OSError as error:
            raise RequestError(f"session: {path} can't be written: {error.strerror or error}") from error
        return len(saved.token_ids)

    def load(self, path: Path, drafter: Drafter) -> int:
        """Add the state in a file to the prefix cache; return the number of its tokens."""
        try:
            saved = SavedState.read(path, self._identity, self._cache.capacity + _EXTRA)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                raise
            raise RequestError(f"session: {path} can't be read: {error.strerror or error}") from error
        if not self._call(lambda: self._cache.restore(self._loaded.model, saved, drafter)):
            raise RequestError(
                f"session: the state of {len(saved.token_ids)} tokens in {path} does not fit the prefix cache of "
                f"{self._cache.capacity} bytes or the free KV pages; load the model with a larger prefix_cache or context"
            )
        return len(saved.token_ids)

    def _copy(self, ids: np.ndarray, drafter: Drafter) -> SavedState | None:
        snapshot = self._cache.longest(ids, drafter)
        return None if snapshot is None else SavedState.of(snapshot, self._identity, drafter)

    @property
    def _cache(self) -> PrefixCache:
        if self._maybe_cache is None:
            raise RequestError("session: the model was loaded without a prefix cache; load it with prefix_cache=True")
        return self._maybe_cache

    @cached_property
    def _identity(self) -> str:
        disk = self._cache.disk
        return identity_of(self._loaded, exact=self._cache.exact) if disk is None else disk.identity
