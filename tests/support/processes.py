"""Python processes that tests start, interrupt and end."""

import signal
import subprocess
import sys
from contextlib import contextmanager


@contextmanager
def process(*words, **settings):
    """Start Python with arguments; what is still running afterwards is killed.

    It takes interrupts even where tests run in the background, whose children would inherit that they are ignored.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    was = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        child = subprocess.Popen([sys.executable, *words], **pipes | settings)
    finally:
        signal.signal(signal.SIGINT, was)
    with child:
        try:
            yield child
        finally:
            child.kill()


def address(child):
    """Wait until a server says where it is running; returns its address."""
    lines = []
    while not (lines and lines[-1].startswith("dflash: http://")):
        lines.append(child.stderr.readline())
        assert lines[-1], lines
    return lines[-1].split()[1]
