"""The program on a terminal of some width: what is typed, and what the screen shows."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from select import select

from hang_guard import GUARD

CODE = re.compile(r"\x1b\[([\d;?]*)([A-Za-z])")


def on_terminal(*words, columns=80, typed=(), prompt="> ", env=None):
    """Run `python -m dflash` with these words on a terminal; return the exit code and all that it wrote.

    The lines of `typed` are given one by one, each after the program has written the prompt again.
    """
    inner, outer = pty.openpty()
    fcntl.ioctl(outer, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    settings = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "COLUMNS", "LINES")}
    settings |= {"TERM": "xterm-256color", **(env or {})}
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), outer)
    child = subprocess.Popen([sys.executable, "-m", "dflash", *words], env=settings, start_new_session=True, **streams)
    os.close(outer)
    left, shown, answered = list(typed), "", 0
    try:
        while select([inner], [], [], GUARD)[0]:
            try:
                shown += os.read(inner, 1 << 16).decode()
            except OSError:  # the program has closed the terminal
                break
            plain = CODE.sub("", shown[answered:])
            if left and plain.endswith(prompt):
                answered = len(shown)
                os.write(inner, left.pop(0).encode() + b"\n")
        return child.wait(timeout=GUARD), shown.replace("\r\n", "\n")
    finally:
        child.kill()
        child.wait()
        os.close(inner)


def without_codes(text):
    """Remove ANSI sequences, and what a carriage return wrote over."""
    lines = CODE.sub("", text).split("\n")
    return "\n".join(line.split("\r")[-1] if not line.endswith("\r") else line for line in lines)


def styles(text):
    """Return pairs of style and text: the numbers of the ANSI sequence in force, empty for none."""
    found, style, at = [], "", 0
    for code in CODE.finditer(text):
        if code.start() > at:
            found.append((style, text[at : code.start()]))
        at = code.end()
        if code[2] == "m":
            style = "" if code[1] in ("", "0") else code[1]
    return [*found, (style, text[at:])]
