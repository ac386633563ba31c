"""A line on stderr that shows that loading goes on: what is done, how many kernels are compiled, and the time."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TextIO

from dflash.kernels.compiling import Count, count

_DELAY = 1.0
"""Seconds before the first line: a start with a full cache shows none."""

_TICK, _LOG_TICK = 1.0, 10.0
"""Seconds between two lines, on a terminal and in a log."""

_SHOWN_DONE = 0.25
"""Share of the kernels that must be done before the time that is left is estimated."""


def in_notebook() -> bool:
    """Return whether this process runs a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return type(shell).__name__ == "ZMQInteractiveShell"


@contextmanager
def progress_line(
    name: str, *, shown: bool | None = None, file: TextIO | None = None
) -> Iterator[Callable[[str], None] | None]:
    """Show a line while a model is loaded: on a terminal and in a notebook one that is redrawn every second.

    Elsewhere a line is written when a kernel is compiled first, and every ten seconds.

    shown: none shows the line on a terminal and in a notebook only.
    file: stream to write to; None is stderr.
    """
    file = sys.stderr if file is None else file
    redrawn = (file.isatty() and os.environ.get("TERM") != "dumb") or in_notebook()
    if not (redrawn or file.isatty() if shown is None else shown):
        yield None
        return
    line = _Line(name, file, redrawn=redrawn)
    thread = threading.Thread(target=line.run, name="dflash-progress", daemon=True)
    thread.start()
    try:
        yield line.begin
    finally:
        line.ended.set()
        thread.join()
        line.close()


class _Line:
    def __init__(self, name: str, file: TextIO, *, redrawn: bool) -> None:
        self._name = "".join(letter if letter.isprintable() else "?" for letter in name)
        self._file, self._redrawn = file, redrawn
        self._stage, self._began, self._before = "", monotonic(), count()
        self._compiling = self._compiled = 0.0  # times when the first kernel began, and when one was last seen
        self._drawn = 0  # characters of the line on the screen
        self._next = 0.0  # time of the next line of a log
        self.ended = threading.Event()

    def begin(self, stage: str) -> None:
        """Name the stage that begins. Nothing is drawn before the first one, since a download draws its own bar."""
        self._stage = stage

    def run(self) -> None:
        """Write lines until the end of loading."""
        wait = _DELAY
        while not self.ended.wait(wait):
            self.tick(monotonic())
            wait = _TICK

    def tick(self, now: float) -> None:
        """Redraw the line, or write one if it is time for the next."""
        kernels = self._kernels()
        if kernels.waiting:
            self._compiling, self._compiled = self._compiling or now, now
        if self._redrawn:
            if self._stage:
                self._redraw(self._text(now, kernels, self._width()))
        elif now >= self._next and (self._compiling or kernels.done or now - self._began >= _LOG_TICK):
            self._write(f"dflash: {self._text(now, kernels, 0)}\n")
            self._next = now + _LOG_TICK

    def close(self) -> None:
        """Remove the line; in a log, write how many kernels were compiled if a line announced them."""
        if self._redrawn:
            if self._drawn:
                self._redraw("")
                self._write("\r")
        elif self._compiling:
            done, seconds = self._kernels().done, max(self._compiled - self._compiling, _TICK)
            self._write(f"dflash: {done} kernel{'s' * (done != 1)} compiled in {seconds:.0f} s, once per machine\n")

    def _kernels(self) -> Count:
        now, before = count(), self._before
        return now._replace(done=now.done - before.done, done_size=now.done_size - before.done_size)

    def _text(self, now: float, kernels: Count, width: int) -> str:
        """Return the longest text that fits a width; 0 is unlimited."""
        clock = f"({int(now - self._began) // 60}:{int(now - self._began) % 60:02d})"
        if kernels.waiting:
            done = f"{kernels.done} of {kernels.done + kernels.waiting}" if kernels.waiting > 1 else f"{kernels.done} done"
            left = self._left(now, kernels)
            texts = [
                f"compiling kernels, once per machine: {done}{left and f', about {left} left'} {clock}",
                f"compiling kernels (once): {done}{left and f', {left} left'} {clock}",
                f"compiling: {done}{left and f', {left} left'} {clock}",
                f"compiling {done} {clock}",
                f"compiling {done}",
            ]
        elif self._stage:
            texts = [f"loading {self._name}: {self._stage} {clock}", f"loading: {self._stage} {clock}", f"loading {clock}"]
        else:
            texts = [f"downloading {self._name} {clock}"]  # a local file is found within a second
        return next((text for text in texts if not width or len(text) < width), texts[-1][: max(width - 1, 1)])

    def _left(self, now: float, kernels: Count) -> str:
        """Return the seconds that are left if all kernels take as long for their size as those before; nothing early on."""
        total = kernels.done_size + kernels.waiting_size
        if kernels.waiting < 2 or kernels.done_size < _SHOWN_DONE * total:
            return ""
        return f"{max((now - self._compiling) * kernels.waiting_size / kernels.done_size, 1):.0f} s"

    def _width(self) -> int:
        try:
            return os.get_terminal_size(self._file.fileno()).columns or 80
        except (OSError, ValueError):  # a notebook
            return 80

    def _redraw(self, text: str) -> None:
        self._write(f"\r{text.ljust(min(self._drawn, self._width() - 1))}")
        self._drawn = len(text)

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
            self._file.flush()
        except (OSError, ValueError):  # nobody reads stderr any more
            self.ended.set()
