"""Folder of saved states: names, an index, and a limit of the bytes of all files."""

import hashlib
import os
import re
import stat
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.decode.prefix_cache.disk.state_file import TEMPORARY
from dflash.kernels.compile_cache.folder import check_owner, prepare_folder

_NAME = re.compile(
    r"(?P<model>[0-9a-f]{16})-(?P<length>[1-9]\d{0,8})-(?P<origin>[pg])(?:-(?P<drafter>[0-9a-f]{16}))?-(?P<digest>[0-9a-f]{40})\.safetensors"
)
"""Names of states: model, number of tokens, in a prompt or after generated tokens, drafter, hash of identity and tokens."""

_MAX_WRITING = 3600.0
"""Seconds after which a temporary file counts as left by a process that ended. Writing takes seconds; not measured."""


class StateName(NamedTuple):
    """Name of a state of the model.

    in_prompt: True if no token in the state was generated.
    drafter: hash of the drafter whose state is in the file; empty if there is none.
    """

    length: int
    in_prompt: bool
    digest: str
    drafter: str = ""


class StateFolder:
    """Files of states in one folder, which several models and processes may share.

    path: created with mode 0700 by `prepare`.
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path = path
        self._identity = hashlib.sha256(identity.encode())
        self._model = self._identity.hexdigest()[:16]
        self._lock = threading.Lock()
        self._index: set[StateName] = set()
        self._n_bytes = 0
        self._scanned: int | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of the states of all models at the last look."""
        return self._n_bytes

    def __len__(self) -> int:
        return len(self._index)

    def prepare(self) -> None:
        """Create the folder, or check that no other user can write to it; raise `OSError` if that fails."""
        prepare_folder(self.path)

    def path_of(self, name: StateName) -> Path:
        """Return the path of a state."""
        parts = [self._model, str(name.length), "p" if name.in_prompt else "g", name.drafter, name.digest]
        return self.path / f"{'-'.join(filter(None, parts))}.safetensors"

    def name_of(self, token_ids: NDArray[np.int32], *, in_prompt: bool, drafter: str = "", salt: str = "") -> StateName:
        """Return the name for the state after some tokens; `drafter` is the identity of its drafter."""
        digest = self._salted(salt)
        digest.update(token_ids.astype("<i4").tobytes())
        return StateName(len(token_ids), in_prompt, digest.hexdigest()[:40], drafter_hash(drafter))

    def __contains__(self, name: StateName) -> bool:
        return name in self._index

    def forget(self, name: StateName) -> None:
        """Remove a name from the index until the folder changes."""
        with self._lock:
            self._index.discard(name)

    def _salted(self, salt: str) -> "hashlib._Hash":
        digest = self._identity.copy()
        digest.update(hashlib.sha256(salt.encode()).digest() if salt else b"")
        return digest

    def find(self, token_ids: NDArray[np.int32], above: int, salt: str = "") -> list[StateName]:
        """Return the states of more than `above` tokens that are a prefix of token_ids (T,), the longest first."""
        names: defaultdict[tuple[int, str], list[StateName]] = defaultdict(list)
        with self._lock:
            for name in self._index:
                names[name.length, name.digest].append(name)
        digest, at, found = self._salted(salt), 0, list[StateName]()
        for length in sorted({length for length, _ in names if above < length <= len(token_ids)}):
            digest.update(token_ids[at:length].astype("<i4").tobytes())
            at, text = length, digest.copy().hexdigest()[:40]
            found += sorted(names.get((length, text), ()))
        return found[::-1]

    def refresh(self) -> None:
        """List the folder again if a file was added or removed; raise `OSError` if it can't be listed."""
        changed = self.path.stat().st_mtime_ns
        if changed != self._scanned:
            self.trim(None)
            self._scanned = changed

    def trim(self, capacity: int | None) -> None:
        """List the folder, and remove the least recently used states of all models beyond `capacity` bytes.

        Other files are left alone, but for temporary files that a process of this user has left.
        """
        with self._lock:
            files, index = [], set[StateName]()
            with os.scandir(self.path) as entries:
                for entry in entries:
                    with suppress(OSError):  # removed meanwhile, or of another user
                        status = entry.stat(follow_symlinks=False)
                        match = _NAME.fullmatch(entry.name)
                        if not stat.S_ISREG(status.st_mode):
                            continue
                        check_owner(status)
                        if match is not None:
                            files.append((status.st_mtime_ns, status.st_size, entry.name, match))
                        elif entry.name.startswith(TEMPORARY) and time.time() - status.st_mtime > _MAX_WRITING:
                            (self.path / entry.name).unlink()
            total = sum(size for _, size, _, _ in files)
            for _, size, name, match in sorted(files, key=lambda file: file[:3]):
                if capacity is not None and total > capacity:
                    with suppress(FileNotFoundError):
                        (self.path / name).unlink()
                    total -= size
                elif match["model"] == self._model:
                    index.add(
                        StateName(int(match["length"]), match["origin"] == "p", match["digest"], match["drafter"] or "")
                    )
            self._index, self._n_bytes = index, total


def drafter_hash(identity: str) -> str:
    """Return what file names say of a drafter: 16 digits, or nothing for the empty identity."""
    return identity and hashlib.sha256(identity.encode()).hexdigest()[:16]
