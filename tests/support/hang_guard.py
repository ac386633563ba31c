"""Waiting for other threads and processes: for an event or a count, with a bound that only a test that hangs reaches."""

import time

GUARD = 600
"""Seconds after which a test that hangs fails; even a busy machine compiles all kernels of a command in that time."""


def wait_until(claim):
    """Call `claim` until it returns True."""
    deadline = time.monotonic() + GUARD
    while not claim():
        assert time.monotonic() < deadline, "the test hangs"
        time.sleep(0.002)
