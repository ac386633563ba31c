"""Have the C library give freed memory back to the system."""

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of the parameters in glibc's malloc.h
_KEPT, _LARGE = 2 << 20, 4 << 20


def return_freed_memory() -> None:
    """Limit what every thread's heap keeps: at most 2 MiB at its end, and no block from 4 MiB on. Only with glibc.

    By itself glibc keeps up to 64 MiB in the heap of each thread once a large block was freed, so that a burst of large
    requests would leave the process larger for ever.
    """
    if sys.platform == "linux":
        with suppress(AttributeError, OSError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_TRIM_THRESHOLD, _KEPT)
            mallopt(_MMAP_THRESHOLD, _LARGE)
