"""Standard streams of a command: none is closed, every character can be written, and a reader may leave."""

import codecs
import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from io import TextIOWrapper
from typing import NoReturn

from dflash.errors import RequestError

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG)
"""Errors of a stream whose disk is full, or whose other end has failed."""


def guarded(run: Callable[[], int]) -> int:
    """Run a command on usable streams and return its exit code: 0 if a reader left, 1 if the output can't be written."""
    _prepare()
    try:
        try:
            return run()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
    except BrokenPipeError:
        _silence()
        return 0
    except OSError as error:
        if error.errno not in _UNWRITABLE or error.filename is not None:
            raise
        _silence()
        print(f"dflash: the output can't be written: {error.strerror}", file=sys.stderr)
        return 1


def _prepare() -> None:
    """Open closed streams on the null device, and choose what happens to characters that a stream does not have."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        with suppress(OSError):  # a system without the null device
            _open(number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="dflash.refused")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="dflash.escaped")


def _open(number: int) -> None:
    """Open a closed descriptor: otherwise the next file or socket would take its number and receive what is printed."""
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        os.dup2(opened, number)
        if opened != number:
            os.close(opened)


def _silence() -> None:
    """Direct streams that can't be written to the null device; otherwise Python would report the error again at its end."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that an encoding lacks by escapes of JSON, so that printed JSON stays valid."""
    assert isinstance(error, UnicodeEncodeError)
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


def _refused(error: UnicodeError) -> NoReturn:
    """Refuse text that is not in the encoding of stdin."""
    assert isinstance(error, UnicodeDecodeError)
    wanted = "" if error.encoding == "utf-8" else "; PYTHONIOENCODING=utf-8 reads the text as UTF-8"
    raise RequestError(f"stdin: byte 0x{error.object[error.start]:02x} is not {error.encoding}{wanted}") from None


codecs.register_error("dflash.escaped", _escaped)
codecs.register_error("dflash.refused", _refused)
