"""The tier of the prefix cache on disk: states that memory evicts, written by a thread and read when they help."""

import logging
import os
import queue
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.decode.drafting.drafter import Drafter
from dflash.decode.prefix_cache.disk.saved_state import SavedState, identity_of_drafter, newest_drafter
from dflash.decode.prefix_cache.disk.state_folder import StateFolder, StateName, drafter_hash
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import FormatError, NotFound, RequestError

_log = logging.getLogger(__name__)

DEFAULT_CAPACITY = 16 << 30
"""Bytes of all files by default: some twenty states of 10,000 tokens of a model of 27 billion parameters."""

MIN_GAIN = 256
"""Default for the fewest tokens that a file must save against memory: one KV page. Not measured on a GPU."""

_QUEUE = 2
"""States that wait to be written. Each takes host memory, up to a gigabyte; later ones are dropped."""


class DiskStats(NamedTuple):
    """Size and counts of the tier on disk.

    n_bytes, capacity: bytes of the states of all models in the folder, and their maximum.
    hits, hit_tokens: states that were read for a session, and their tokens.
    dropped: states that were not written because the writer was busy or has failed.
    """

    files: int
    n_bytes: int
    capacity: int
    hits: int
    hit_tokens: int
    writes: int
    dropped: int


class DiskTier:
    """States in the files of a folder. No method raises an error because of the state of the disk.

    A folder that can't be written to, or a full disk, ends writing; files are still read. Damaged files are removed. Each of
    these logs one warning. Used in the engine's thread only, except for `stats`.

    min_gain: fewest tokens that a file must save.
    """

    def __init__(self, folder: Path, capacity: int, identity: str, *, min_gain: int = MIN_GAIN) -> None:
        if capacity < 0:
            raise RequestError(f"prefix_cache_disk: a number of bytes of at least 0 is wanted, got {capacity}")
        self.capacity, self.identity, self.min_gain = capacity, identity, min_gain
        self.folder = StateFolder(folder, identity)
        self._counts: Counter[str] = Counter()
        self._warned: set[str] = set()
        self._queue: queue.Queue[tuple[StateName, SavedState] | None] = queue.Queue(_QUEUE)
        self._queued: set[StateName] = set()
        self._writer: threading.Thread | None = None
        self._off = False
        try:
            self.folder.prepare()
            self.folder.trim(capacity)
        except OSError as error:
            self._turn_off(error)

    @property
    def stats(self) -> DiskStats:
        """Size and counts; may be read in any thread."""
        counts = (self._counts[name] for name in DiskStats._fields[3:])
        return DiskStats(len(self.folder), self.folder.n_bytes, self.capacity, *counts)

    def find(
        self,
        token_ids: NDArray[np.int32],
        above: int,
        alignment: int | None = None,
        *,
        needs_no_drafter: Callable[[int], bool],
        drafter: Drafter,
        salt: str = "",
    ) -> StateName | None:
        """Return the longest state that is a prefix of token_ids (T,).

        alignment: if given, only states in a prompt, with a multiple of this number of tokens.
        needs_no_drafter: ``needs_no_drafter(length)``: True if a state of that length is of use without one of `drafter`.
        """
        with suppress(OSError):
            self.folder.refresh()
        own: str | None = None
        for name in self.folder.find(token_ids, above + self.min_gain - 1, salt):
            if alignment is not None and not (name.in_prompt and name.length % alignment == 0):
                continue
            if needs_no_drafter(name.length):
                return name
            own = drafter_hash(identity_of_drafter(drafter)) if own is None else own
            if name.drafter == own:
                return name
        return None

    def read(self, name: StateName, token_ids: NDArray[np.int32]) -> SavedState | None:
        """Read the state of a name that `find` has returned for token_ids (T,); None if its file can't be used."""
        path = self.folder.path_of(name)
        try:
            saved = SavedState.read(path, self.identity, self.capacity)
            if not np.array_equal(saved.token_ids, token_ids[: name.length]):
                raise RequestError(f"{path.name}: holds other tokens than its name says")
        except NotFound:  # removed by another process
            self.folder.forget(name)
            return None
        except FormatError as error:
            self.discard(name, error)
            return None
        except (OSError, RequestError, MemoryError) as error:
            self.folder.forget(name)
            self._warn("file", f"{error}; the file is not used")
            return None
        with suppress(OSError, NotImplementedError):
            os.utime(path, follow_symlinks=False)
        return saved

    def discard(self, name: StateName, error: Exception) -> None:
        """Remove a file that can't be used."""
        self.folder.forget(name)
        with suppress(OSError):
            self.folder.path_of(name).unlink()
        self._warn("file", f"{error}; the file is removed")

    def count(self, name: StateName) -> None:
        """Count a state that a session begins with."""
        self._counts.update(hits=1, hit_tokens=name.length)

    def save(self, snapshot: SessionSnapshot, n_bytes: int, *, wait: bool = False, salt: str = "") -> None:
        """Copy a snapshot of about `n_bytes` to the host and let the thread write it, unless it has a file.

        snapshot: open; may be closed afterwards.
        """
        if snapshot.length < self.min_gain or n_bytes > self.capacity:
            return
        drafter = newest_drafter(snapshot)
        known = "" if drafter is None else identity_of_drafter(drafter)
        name = self.folder.name_of(snapshot.ids, in_prompt=snapshot.length < snapshot.n_prompt, drafter=known, salt=salt)
        if name in self.folder or name in self._queued:
            return
        if self._off or (self._queue.full() and not wait):
            self._counts["dropped"] += 1
            return
        try:
            saved = SavedState.of(snapshot, self.identity, drafter)
        except Exception as error:  # of a lost device or a lack of memory, which must not end the engine
            self._counts["dropped"] += 1
            self._warn("copy", f"a state could not be copied to be saved: {type(error).__name__}: {error}")
            return
        if self._writer is None:
            self._writer = threading.Thread(target=self._write_all, name="dflash-prefix-disk", daemon=True)
            self._writer.start()
        self._queued.add(name)
        self._queue.put((name, saved))

    def flush(self) -> None:
        """Wait until everything is written."""
        self._queue.join()

    def close(self) -> None:
        """Write everything and end the thread; `save` begins another one."""
        writer, self._writer = self._writer, None
        if writer is not None:
            self._queue.put(None)
            writer.join()

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            name, saved = item
            try:
                self._write(name, saved)
            finally:
                self._queued.discard(name)
                self._queue.task_done()
                del item, saved  # frees the arrays before the next wait
        self._queue.task_done()

    def _write(self, name: StateName, saved: SavedState) -> None:
        if self._off:
            self._counts["dropped"] += 1
            return
        try:
            saved.write(self.folder.path_of(name))
            self.folder.trim(self.capacity)
        except Exception as error:
            self._counts["dropped"] += 1
            self._turn_off(error)
        else:
            self._counts["writes"] += 1

    def _turn_off(self, error: Exception) -> None:
        self._off = True
        self._warn("folder", f"{error}; no more states are saved there")

    def _warn(self, kind: str, reason: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _log.warning("prefix cache in %s: %s", self.folder.path, reason)
