"""Compiled code on disk, one file per entry.

The cache is a hint. A file that is cut short, damaged or somebody else's is a miss, and code that can't be kept is used all
the same; the log says so once per process.
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

from dflash.kernels.code_age import DAY, TEMPORARY, Clock, remove_unused
from dflash.kernels.code_folder import check_owner, prepare_folder, spare_folder

_log = logging.getLogger(__name__)

_CHECKSUM = hashlib.sha256
_CHECKSUM_BYTES = 32


class _Damaged(Exception):
    """The checksum of a file is not that of its content."""


class CodeCache:
    """Entries of compiled code in a folder that only this user can write to.

    A file holds the content and the SHA-256 of folder name, file name and content. It is written under another name,
    flushed to the disk and renamed, so that other processes see all of it or nothing. The checksum finds damage; against
    other users there are the owner and the mode of folder and file (`code_folder`).

    Where the folder can't be written to, entries are read from it and new ones are kept in this user's folder for
    temporary files, under the same rules. No method raises for the state of the disk.

    Parameters
    ----------
    folder : Path
        Made, with mode 0700, for the first entry.
    siblings : str
        Pattern of the names of folders of other versions beside it; those that were not used for 30 days are removed.
    """

    def __init__(self, folder: Path, siblings: str = "") -> None:
        self.folder = folder
        self._siblings = siblings
        self._lock = threading.Lock()
        self._warned: set[str] = set()
        self._cleaned: set[Path] = set()

    def get(self, name: str) -> bytes | None:
        """Return the content of an entry, or None if there is none that is whole and to be trusted."""
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

    def put(self, name: str, content: bytes) -> None:
        """Keep an entry if that is possible."""
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
        """Remove an entry that turned out to be unusable although its checksum was right."""
        for folder in self._folders:
            self._remove(folder / name, reason)

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
                raise _Damaged("is no file")
            data = file.read()
        content, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
        if checksum != _checksum(path, content):
            raise _Damaged(f"the checksum of its {len(data)} bytes is wrong")
        if time.time() - status.st_mtime > DAY and self._clock.now() - status.st_mtime > DAY:
            with suppress(OSError):
                os.utime(path, (self._clock.now(),) * 2)
        return content

    def _write(self, path: Path, content: bytes) -> None:
        now = self._clock.now()  # before the first file is there: it depends on those of earlier processes
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
    """Return a checksum that also tells the entry from others: a renamed file is no entry under its new name."""
    checksum = _CHECKSUM(f"{path.parent.name}\0{path.name}\0".encode())
    checksum.update(content)
    return checksum.digest()
