"""Terminal output: streamed text on stdout, everything else on stderr."""

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from dflash.generation.stream import Stream

_SHOWN = {code: f"^{chr(code ^ 0x40)}" for code in (*range(0x20), 0x7F) if chr(code) not in "\n\t"}
_SHOWN |= dict.fromkeys(range(0x80, 0xA0), "\ufffd")


def has_terminal() -> bool:
    """Return True if stderr is a terminal, where progress bars can be drawn."""
    return sys.stderr.isatty()


def visible(text: str) -> str:
    """Replace control characters, which a terminal would execute, by visible characters.

    Parameters
    ----------
    text : str
        Untrusted text: from a model, its file, or a message that quotes them.

    Returns
    -------
    str
        C0 and DEL in caret notation (ESC is ``^[``) and C1 as U+FFFD; newlines and tabs stay. Every escape sequence begins
        with one of these characters, so none remains, even if it is split over two calls.
    """
    return text.translate(_SHOWN)


def write(text: str, file: TextIO) -> None:
    """Write to a stream and flush it. Text for a terminal is made `visible`; files and pipes get it unchanged."""
    file.write(visible(text) if file.isatty() else text)
    file.flush()


def say(line: str) -> None:
    """Write a line to stderr."""
    write(line + "\n", sys.stderr)


def put(line: str) -> None:
    """Write a line to stdout."""
    write(line + "\n", sys.stdout)


def show(stream: "Stream") -> None:
    """Write the text of a stream to stdout as it arrives, with a progress bar on stderr during prefill."""
    from tqdm import tqdm

    bar = None
    try:
        for delta in stream:
            if delta.step.prefilled and has_terminal():
                bar = bar or tqdm(total=stream.n_prompt - 1, desc="prompt", unit="tok", leave=False, file=sys.stderr)
                bar.update(delta.step.prefilled)
            elif bar is not None:
                bar.close()
            if delta.text:
                write(delta.text, sys.stdout)
    finally:
        if bar is not None:
            bar.close()


def table(rows: Iterable[Iterable[object]], *, right: Iterable[int] = ()) -> str:
    """Format rows of cells as a Markdown table. The first row is the head; columns in `right` are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_right = set(right)

    def line(row: list[str]) -> str:
        padded = (
            cell.rjust(width) if column in to_right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(padded)} |"

    rule = [("-" * (width - 1) + ":") if column in to_right else "-" * width for column, width in enumerate(widths)]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def size(n_bytes: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.2f} GiB"
