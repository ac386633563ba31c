"""Terminal output: streamed text on stdout, everything else on stderr."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TextIO

_SHOWN = {code: f"^{chr(code ^ 0x40)}" for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"}
_SHOWN |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def has_terminal() -> bool:
    """Return True if stderr is a terminal, where progress bars can be drawn."""
    return sys.stderr.isatty()


def visible(text: str) -> str:
    """Replace control characters, which a terminal would execute, by visible characters.

    Returns: c0 and DEL in caret notation (ESC is ``^[``) and C1 as U+FFFD; newlines and tabs stay. Every escape sequence
        begins with one of these characters, so none remains, even if it is split over two calls.
    """
    return text.translate(_SHOWN)


def has_colors(file: TextIO) -> bool:
    """Return True if a stream is a terminal that shows colours and the user has not set NO_COLOR."""
    return file.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width(file: TextIO) -> int | None:
    """Return the columns of a stream's terminal; None for a file or pipe. COLUMNS overrides the terminal's own number."""
    if not file.isatty():
        return None
    try:
        own = os.get_terminal_size(file.fileno())
    except (OSError, ValueError):  # no descriptor, as in a notebook
        own = os.terminal_size((80, 24))
    return shutil.get_terminal_size(own).columns if os.environ.get("COLUMNS") else own.columns or None


def write(text: str, file: TextIO, style: str = "") -> None:
    """Write to a stream and flush it. Text for a terminal is made `visible`; files and pipes get it unchanged.

    `style` holds the numbers of an ANSI sequence (``"2"`` is dim), for streams that `has_colors`.
    """
    shown = visible(text) if file.isatty() else text
    file.write(f"\x1b[{style}m{shown}\x1b[0m" if style and text and has_colors(file) else shown)
    file.flush()


def say(line: str, style: str = "") -> None:
    """Write a line to stderr."""
    write(line, sys.stderr, style)
    write("\n", sys.stderr)


def put(line: str) -> None:
    """Write a line to stdout."""
    write(line + "\n", sys.stdout)


def wrapped(text: str, indent: str = "  ", file: TextIO | None = None) -> str:
    """Break a line between words to fit the terminal of a stream (default: stderr); further lines are indented.

    A path that is longer than a line is broken after its slashes.
    """
    columns = width(file or sys.stderr)
    if columns is None or len(text) <= columns:
        return text
    columns = max(columns, len(indent) + 16)
    wrapper = textwrap.TextWrapper(columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    if max(map(len, text.split())) > columns - len(indent):
        wrapper.wordsep_simple_re = re.compile(r"(\s+|(?<=/)(?=\S))")
    return "\n".join(wrapper.wrap(text))


def table(rows: Iterable[Iterable[object]], *, right: Iterable[int] = ()) -> str:
    """Format rows of cells as a Markdown table. The first row is the head; columns in `right` are right-aligned.

    A table that is wider than the terminal is folded: the columns follow in several tables, each of which begins with the
    first column.
    """
    cells = [[str(cell).replace("|", r"\|") for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n\n".join(_table(cells, widths, group, set(right)) for group in _folded(widths, width(sys.stdout)))


def _folded(widths: Sequence[int], columns: int | None) -> list[list[int]]:
    """Divide the columns of a table into groups that fit, each with the first column."""
    groups: list[list[int]] = [[0]]
    for column in range(1, len(widths)):
        needed = sum(widths[each] + 3 for each in (*groups[-1], column)) + 1
        if columns is not None and needed > columns and len(groups[-1]) > 1:
            groups.append([0])
        groups[-1].append(column)
    return groups


def _table(cells: list[list[str]], widths: list[int], columns: list[int], to_right: set[int]) -> str:
    def line(row: list[str]) -> str:
        padded = (row[each].rjust(widths[each]) if each in to_right else row[each].ljust(widths[each]) for each in columns)
        return f"| {' | '.join(padded)} |"

    rule = ["-" * (size - 1) + ":" if each in to_right else "-" * size for each, size in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def size(n_bytes: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.2f} GiB"
