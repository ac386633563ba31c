"""Text in the style of a token's origin: colours where the terminal shows them, marks elsewhere."""

from typing import TextIO

from dflash.cli.terminal import has_colors, width, write

COLORS = {"accepted": "36", "bonus": "", "corrected": "33", "injected": "35", "rejected": "9;31"}
"""Numbers of the ANSI sequence of each origin: cyan, none, yellow, magenta, red and struck through."""

MARKS = {"accepted": "[]", "bonus": "", "corrected": "", "injected": "{}", "rejected": "~~"}
"""Characters around the text of each origin where there are no colours; twice those of a rejected draft."""

NAMES = {
    "accepted": "accepted",
    "bonus": "bonus",
    "corrected": "bonus after a rejection",
    "injected": "injected",
    "rejected": "rejected",
}
"""Origins in the legend; `dflash.generation.display.palette.MEANING` says more."""

DIM = "2"


class Pen:
    """Writes text to a stream. A run of one origin gets one pair of marks, however many pieces it comes in."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._colored = file, has_colors(file)
        self.columns = width(file)
        self._origin = ""

    def write(self, text: str, origin: str = "", *, dim: bool = False) -> None:
        """Write a piece of text; `origin` is a key of `COLORS`, or empty for text without one."""
        if not text:
            return
        if origin != self._origin:
            self.lift()
            self._origin = origin
            self._mark(0)
        write(text, self._file, ";".join(filter(None, [DIM * dim, COLORS.get(origin, "")])))

    def write_breaks(self, n: int) -> None:
        """Write line breaks, which belong to no origin and end no run."""
        write("\n" * n, self._file)

    def rewrite(self, line: str) -> None:
        """Write a dim line over the current one, where the stream is a terminal."""
        if self._colored:
            self._file.write("\r")
        self.write(line, dim=True)

    def lift(self) -> None:
        """End the run of the current origin."""
        self._mark(1)
        self._origin = ""

    def _mark(self, side: int) -> None:
        marks = MARKS.get(self._origin, "")
        if marks and not self._colored:
            write(marks[side] * (2 if self._origin == "rejected" else 1), self._file)
