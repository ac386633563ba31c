"""Track when cached compiled code was last used; remove entries unused for 30 days, and the oldest beyond 1 GiB.

The time of a file's last change is the time of its last use, to within a day. Other processes may remove the same files
at the same time.
"""

import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

DAY = 86400.0
"""Seconds of a day: when a file with an older stamp is used, its stamp is renewed."""

TEMPORARY = "new-"
"""Prefix of files that are being written; one that is a day old was left behind by a killed process."""

_KEPT = 30 * DAY
MAX_BYTES = 1 << 30
"""Bytes of a folder: months of edits. The kernels of a model take 3 MB on a CPU and tens of MB on a GPU."""

_LONGEST_STEP = 7 * DAY
"""Seconds that the clock may be ahead of the last use: a clock that jumps a month ahead must not empty the cache."""


class Clock:
    """The system's clock, limited to a week after the last use of the cache by earlier processes.

    folder: folder of the cache.
    siblings: pattern of the folder names of other versions; empty if there are none.
    """

    def __init__(self, folder: Path, siblings: str = "") -> None:
        # A new folder is empty, so its own stamp is no record of an earlier use.
        newest = max((last_use(folder, empty=0.0), *(last_use(path) for path in _beside(folder, siblings))))
        self._start = min(time.time(), newest + _LONGEST_STEP) if newest else time.time()
        self._since = time.monotonic()

    def now(self) -> float:
        """Return seconds since 1970."""
        return self._start + time.monotonic() - self._since


def last_use(folder: Path, empty: float | None = None) -> float:
    """Return when a file of a folder was last used, in seconds since 1970; without files `empty` or that of the folder."""
    try:
        stamps = [stamp for path, stamp in _stamps(folder) if not path.name.startswith(TEMPORARY)]
        if not stamps:
            return folder.stat().st_mtime if empty is None else empty
        return max(stamps)
    except OSError:
        return 0.0


def remove_unused(folder: Path, siblings: str, now: float) -> None:
    """Remove files of a folder, and folders of other versions beside it, that were not used for 30 days before `now`.

    Beyond `MAX_BYTES`, files that were used least recently go earlier.
    """
    n_bytes = 0
    with suppress(OSError):
        for path, stamp in sorted(_stamps(folder), key=lambda entry: -entry[1]):
            with suppress(OSError):
                n_bytes += path.stat().st_size
                if n_bytes > MAX_BYTES or now - stamp > (DAY if path.name.startswith(TEMPORARY) else _KEPT):
                    path.unlink()
    for path in _beside(folder, siblings):
        stamp = last_use(path)
        if stamp and now - stamp > _KEPT:
            shutil.rmtree(path, ignore_errors=True)


def _stamps(folder: Path) -> Iterator[tuple[Path, float]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                yield Path(entry.path), entry.stat(follow_symlinks=False).st_mtime


def _beside(folder: Path, siblings: str) -> list[Path]:
    if not siblings:
        return []
    try:
        return [path for path in folder.parent.glob(siblings) if path != folder and path.is_dir()]
    except OSError:
        return []
