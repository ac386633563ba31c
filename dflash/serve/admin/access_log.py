"""Handler that writes log lines in a thread of its own, and counts of lines that the logs have lost."""

import logging
import queue
import threading
from collections import Counter
from contextlib import suppress
from typing import TextIO

log = logging.getLogger("dflash.serve")

LOST: Counter[str] = Counter(access=0, debug=0)
"""Lines of the logs of this process that could not be written, by log."""

MAX_WAITING = 10_000
"""Lines that wait to be written, 2 MB; later ones are dropped."""

_CLOSING = 1.0
"""Seconds that `end` waits for the lines that still wait; a pipe that nobody reads must not delay the exit."""


class AccessLogHandler(logging.Handler):
    """Writes lines to a stream. A slow disk, a full one, or a pipe that nobody reads delays no request.

    Lines that can't be written are dropped and counted in `LOST`; the first one logs a warning.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream, self._warned = stream, False
        self._lines: queue.Queue[str | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._write_all, name="dflash-access-log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line; returns at once."""
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._lose("nobody reads it fast enough")

    def end(self) -> None:
        """Write what waits, for at most a second. Called once, after the last line.

        This is not `close`, which `logging` calls on all handlers whenever somebody configures it, as uvicorn does.
        """
        if self._lines.full():
            with suppress(queue.Empty):
                self._lines.get_nowait()
        self._lines.put_nowait(None)
        self._thread.join(_CLOSING)

    def _write_all(self) -> None:
        while (line := self._lines.get()) is not None:
            try:
                self._stream.write(f"{line}\n")
                self._stream.flush()
            except (OSError, ValueError) as error:  # ValueError: the stream is closed
                self._lose(error)

    def _lose(self, cause: object) -> None:
        LOST["access"] += 1
        if not self._warned:
            self._warned = True
            log.warning("a line of the access log can't be written, nor perhaps later ones: %s", cause)
