"""Compiled code on disk, one file per entry.

The cache is only an optimisation. A truncated, damaged or foreign file counts as a miss. Code that can't be stored is used
anyway, and the log mentions that once per process.
"""

import hashlib
import logging
import os
import stat
import tempfile
import threading
import time
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from dflash.kernels.compile_cache.age import DAY, TEMPORARY, Clock, remove_unused
from dflash.kernels.compile_cache.folder import check_owner, prepare_folder, spare_folder

_log = logging.getLogger(__name__)

_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = 32


class _Damaged(Exception):
    """A file of the cache is not a regular file, or its checksum does not match its content."""


class CodeCache:
    """Entries of compiled code in a folder that only this user can write to.

    A file holds the content and the SHA-256 of folder name, file name and content. It is written under another name,
    flushed to the disk and renamed, so that other processes see all of it or nothing. The checksum detects damage. Owner
    and mode of folder and file protect against other users (`dflash.kernels.compile_cache.folder`).

    If the folder is not writable, entries are still read from it, and new ones are stored in this user's folder for
    temporary files, under the same rules. No method raises an error because of the state of the disk.

    folder: folder of the cache; created with mode 0700 for the first entry.
    siblings: pattern of the folder names of other versions; folders that were not used for 30 days are removed.
    """

    def __init__(self, folder: Path, siblings: str = "") -> None:
        self.folder = folder
        self._siblings = siblings
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._cleaned: set[Path] = set()

    def get(self, name: str) -> bytes | None:
        """Return the content of an entry, or None if there is no intact entry from a trusted owner."""
        for folder in self._folders:
            try:
                check_owner(folder.stat())
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if folder == self.folder:
                    self._warn("folder", folder, f"{error}; compiled code in it is not used")
                continue
            try:
                return self._read(folder / name)
            except FileNotFoundError:
                continue
            except (OSError, _Damaged) as error:
                self._remove(folder / name, str(error))
        return None

    def has(self, name: str) -> bool:
        """Return whether there is a file of this name; it may be damaged."""
        return any((folder / name).exists() for folder in self._folders)

    def put(self, name: str, content: bytes) -> None:
        """Store an entry if a folder is writable; failures are logged."""
        failures = []
        for folder in self._folders:
            try:
                prepare_folder(folder)
                self._write(folder / name, content)
            except OSError as error:
                failures.append(str(error))
            else:
                if failures:
                    self._warn("folder", self.folder, f"{failures[0]}; new compiled code is kept in {folder}")
                self._clean(folder)
                return
        self._warn("folder", self.folder, f"{failures[0]}; kernels are compiled anew in every process")

    def discard(self, name: str, reason: str) -> None:
        """Remove an entry that can't be loaded although its checksum is right."""
        for folder in self._folders:
            self._remove(folder / name, reason)

    @property
    def used_folder(self) -> Path:
        """Folder in which new entries are stored: the cache's own, or the one for temporary files if that has no entries."""
        return next((folder for folder in self._folders if folder.is_dir()), self.folder)

    @cached_property
    def _folders(self) -> tuple[Path, ...]:
        spare = spare_folder(self.folder.name)
        return (self.folder,) if spare == self.folder else (self.folder, spare)

    @cached_property
    def _clock(self) -> Clock:
        return Clock(self.folder, self._siblings)

    def _read(self, path: Path) -> bytes:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            check_owner(status)
            if not stat.S_ISREG(status.st_mode):
                raise _Damaged("is not a regular file")
            data = file.read()
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if checksum != _checksum(path, content):
            raise _Damaged(f"the checksum of its {len(data)} bytes is wrong")
        if time.time() - status.st_mtime > DAY and self._clock.now() - status.st_mtime > DAY:
            with suppress(OSError):
                os.utime(path, (self._clock.now(),) * 2)
        return content

    def _write(self, path: Path, content: bytes) -> None:
        now = self._clock.now()  # before the first file is written: the clock looks at files of earlier processes
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=TEMPORARY)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.write(_checksum(path, content))
                file.flush()
                os.fsync(file.fileno())
            os.utime(temporary, (now, now))
            Path(temporary).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(temporary).unlink()
            raise

    def _remove(self, path: Path, reason: str) -> None:
        with suppress(OSError):
            path.unlink()
        self._warn("entry", path, f"{reason}; it is compiled again")

    def _clean(self, folder: Path) -> None:
        if folder not in self._cleaned:
            self._cleaned.add(folder)
            remove_unused(folder, self._siblings, self._clock.now())

    def _warn(self, kind: str, path: Path, reason: str) -> None:
        with self._lock:
            first = kind not in self._warned
            self._warned.add(kind)
        if first:
            _log.warning("%s: %s", path, reason)


def _checksum(path: Path, content: bytes) -> bytes:
    """Return a checksum that covers the file's name too, so that a renamed file does not match."""
    checksum = _CHECKSUM(f"{path.parent.name}\0{path.name}\0".encode())
    checksum.update(content)
    return checksum.digest()
