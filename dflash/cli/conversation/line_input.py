"""Lines that the user types: several at once, history and completion on a terminal."""

import sys
from collections.abc import Iterable

BLOCK = '"""'
"""Begins and ends a message of several lines."""


def read(prompt: str = "> ") -> str | None:
    r"""Return the next message, None at the end of the input. Ctrl-C discards it.

    A message goes on after a line that ends in a backslash, and from ``\"\"\"`` up to the next ``\"\"\"``.
    """
    try:
        line = _line(prompt).strip()
        if line.startswith(BLOCK):
            return _block(line.removeprefix(BLOCK))
        lines = [line]
        while lines[-1].endswith("\\"):
            lines[-1] = lines[-1][:-1].rstrip()
            lines.append(_line("... ").rstrip())
        return "\n".join(lines).strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print()
        return ""


def complete_words(words: Iterable[str]) -> None:
    """Complete these words with the tab key, and keep a history, if the input is a terminal."""
    if not sys.stdin.isatty():
        return
    try:
        import readline
    except ImportError:  # Windows
        return
    known = sorted(words)

    def match(text: str, n: int) -> str | None:
        found = [word for word in known if word.startswith(text)]
        return f"{found[n]} " if n < len(found) else None

    readline.set_completer(match)
    readline.set_completer_delims(" ")
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")


def _line(prompt: str) -> str:
    return input(prompt if sys.stdin.isatty() else "")


def _block(first: str) -> str:
    lines, text = [], first
    while BLOCK not in text:
        lines.append(text)
        try:
            text = _line("... ")
        except EOFError:
            break
    else:
        lines.append(text.partition(BLOCK)[0])
    return "\n".join(lines).strip()
