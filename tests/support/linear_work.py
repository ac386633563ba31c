"""Checks that work grows in proportion to a text, on any machine.

Python's work is counted in executed lines. Work in C has no count: it is too much only if it takes more CPU time than linear
work can and also grows faster than the text, both in the same process.
"""

import gc
import sys
import time
from contextlib import suppress

from dflash.errors import DFlashError
from dflash.serve.http_errors import Problem

SECONDS = 0.1
"""CPU seconds that the longer texts never take in linear time, and always in quadratic time."""


def check_linear(function, text_of, n, *, long=None, seconds=SECONDS):
    """Compare the work for texts of n and 4 n parts; that in C for texts of `long` parts and a quarter of them, if given."""
    lines, more_lines = (lines_of(function, text_of(size)) for size in (n, 4 * n))
    assert more_lines <= 6 * lines + 2000, "quadratic loops"
    longer, shorter = text_of(long or 4 * n), text_of(long // 4 if long else n)
    if seconds_of(function, longer) > seconds:
        assert seconds_of(function, longer, 2) <= max(seconds, 8 * seconds_of(function, shorter, 3)), "quadratic work in C"


def lines_of(function, argument):
    """Return the number of executed lines of a call; errors of a client count as a result."""
    n_lines = 0

    def line(frame, event, _):
        nonlocal n_lines
        n_lines += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(line)
    try:
        with suppress(DFlashError, Problem):
            function(argument)
    finally:
        sys.settrace(before)
    return n_lines


def seconds_of(function, argument, n_times=1):
    """Return the least CPU seconds of a call in this thread, without collections of what other tests have left."""
    found = []
    gc.disable()
    try:
        for _ in range(n_times):
            began = time.thread_time()
            with suppress(DFlashError, Problem):
                function(argument)
            found.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(found)
