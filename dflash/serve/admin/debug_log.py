"""Opt-in log of requests and responses with their content."""

import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import BoundedSemaphore

from dflash.errors import RequestError
from dflash.json_types import JsonObject
from dflash.serve.admin.access_log import LOST
from dflash.serve.admin.request_record import RequestRecord

log = logging.getLogger("dflash.serve")

MAX_BODY = 4 << 20
"""Bytes of a request or a response that are logged; prompts of agents have up to about 1 MiB."""

_HIDDEN = (401, 403)
"""Statuses of clients without access: their requests must not fill the disk."""

_MAX_WAITING = 64
"""Exchanges that wait to be written, each up to 8 MiB; while a disk hangs, later ones are dropped."""

_THREAD_NAME = "dflash-debug-log"


class BodyCopy:
    """The first `MAX_BODY` bytes of a body that passes by."""

    def __init__(self) -> None:
        self.data, self.n_bytes = bytearray(), 0

    def add(self, data: bytes) -> None:
        """Add a part of the body."""
        self.data += data[: MAX_BODY - len(self.data)]
        self.n_bytes += len(data)

    def fields(self, name: str) -> JsonObject:
        """Return the text, and the number of all bytes if it was cut."""
        text: JsonObject = {name: self.data.decode("utf-8", "replace")}
        return text if self.n_bytes == len(self.data) else {**text, f"{name}_bytes": self.n_bytes}


class Exchange:
    """A request and its response, as far as they have passed."""

    def __init__(self, record: RequestRecord) -> None:
        self.record, self.request, self.answer = record, BodyCopy(), BodyCopy()
        self.time = datetime.now(UTC)

    def line(self) -> bytes:
        """Return a JSON object in one line. Headers, which hold keys, are left out."""
        record = self.record
        about: JsonObject = {
            "time": self.time.isoformat(),
            "id": record.request_id,
            "method": record.method,
            "route": record.route,
        }
        about |= {"status": record.status, **self.request.fields("request"), **self.answer.fields("answer")}
        return json.dumps(about, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


class DebugLog:
    """Appends exchanges to a file as JSON lines, in a thread of its own, until the file has its maximum size.

    path: file to append to; created with mode 0600. An existing file gets this mode.
    max_bytes: maximum size of the file. An exchange that would exceed it is dropped, and so are all later ones, with one
        warning. The same holds for one that the disk has no space for. Dropped exchanges are counted in `LOST`.
    Raises RequestError if the file is a symbolic link, no regular file, or can't be opened.
    """

    def __init__(self, path: str | os.PathLike[str], max_bytes: int) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError as error:
            cause = "is a symbolic link" if Path(path).is_symlink() else f"can't be opened: {error.strerror}"
            raise RequestError(f"--debug-log {path}: {cause}; give a regular file") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file).st_mode):
                raise RequestError(f"--debug-log {path}: is no regular file")
            os.fchmod(self._file, 0o600)
        except OSError as error:
            os.close(self._file)
            raise RequestError(f"--debug-log {path}: mode 0600 can't be set: {error.strerror}") from error
        except RequestError:
            os.close(self._file)
            raise
        self._free = max_bytes - os.fstat(self._file).st_size
        self._places = BoundedSemaphore(_MAX_WAITING)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=_THREAD_NAME)

    def write(self, exchange: Exchange) -> None:
        """Append an exchange; returns at once. Requests without a body and without access are left out."""
        if not exchange.request.n_bytes or exchange.record.status in _HIDDEN:
            return
        if self._free > 0 and self._places.acquire(blocking=False):
            self._thread.submit(self._append, exchange)
        else:
            LOST["debug"] += 1

    def close(self) -> None:
        """Write what was accepted, then close the file. Called once, after the last request."""
        self._thread.shutdown()
        os.close(self._file)

    def _append(self, exchange: Exchange) -> None:
        try:
            line = exchange.line()
            if len(line) <= self._free:
                self._write(line)
            else:
                self._end("is full")
        except OSError as error:
            self._end(f"can't be written: {error.strerror}")
        finally:
            self._places.release()

    def _write(self, line: bytes) -> None:
        """Append a line as a whole or not at all, as far as the disk allows."""
        end, n_written = os.fstat(self._file).st_size, 0
        try:
            while n_written < len(line):  # a disk that becomes full takes a part
                n_written += os.write(self._file, line[n_written:])
        except OSError:
            with suppress(OSError):
                os.ftruncate(self._file, end)
            raise
        self._free -= n_written

    def _end(self, cause: str) -> None:
        LOST["debug"] += 1
        if self._free > 0:
            log.warning("the debug log %s; later requests are not logged", cause)
        self._free = 0
