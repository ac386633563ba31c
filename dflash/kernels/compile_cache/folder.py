"""Locate folders for compiled code, and check that only this user can have written to them.

Code that is read from a cache is executed. A folder is used only if it and the files in it belong to this user or to root
and nobody else may write to them. Parent folders need no check: each file is checked again after it was opened, and no user
can create a file that belongs to another user.
"""

import os
import stat
import tempfile
from pathlib import Path

_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_folder(variable: str, name: str) -> Path:
    """Return the folder ``dflash/<name>`` in ``$variable``, else in ``$XDG_CACHE_HOME``, else in ``~/.cache``."""
    base = os.environ.get(variable) or os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "dflash" / name
    except RuntimeError:  # this user has no home
        return spare_folder(name)


def spare_folder(name: str) -> Path:
    """Return this user's folder for temporary files, used if the cache folder is not writable."""
    user = os.geteuid() if hasattr(os, "geteuid") else "user"
    try:
        base = Path(tempfile.gettempdir())
    except FileNotFoundError:  # no folder for temporary files can be written to
        base = Path("/tmp")
    return base / f"dflash-{user}" / name


def check_owner(status: os.stat_result) -> None:
    """Check that no other user can have written to a file or folder.

    status: status of an open file from `os.fstat`, so that the file can't be replaced after the check.
    Raises PermissionError if the owner is neither this user nor root, or if group or others may write. Never on systems
        without user ids, where a user's folders are protected by access lists.
    """
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), 0):
        raise PermissionError(f"belongs to user {status.st_uid}, not to user {os.geteuid()}")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        raise PermissionError(f"mode {stat.S_IMODE(status.st_mode):04o} lets others write (chmod go-w)")


def prepare_folder(folder: Path) -> None:
    """Create a folder that only this user can enter, or check an existing one.

    Raises OSError if the folder can't be created, or another user may write to it.
    """
    _make(folder)
    check_owner(folder.stat())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(0o700)
    except FileNotFoundError:
        _make(folder.parent)
        folder.mkdir(0o700, exist_ok=True)
    except FileExistsError:
        if not folder.is_dir():
            raise
