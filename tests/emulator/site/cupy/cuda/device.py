"""Emulated GPUs, which have the sizes of an H200 but less memory, and the one that is current in a thread."""

import os
import threading

from emulator import library

from cupy.cuda.errors import OutOfMemoryError, check

GPUS = int(os.environ.get("EMULATOR_GPUS", "1"))
PROCESSORS = int(os.environ.get("EMULATOR_PROCESSORS", "132"))
MEMORY = 8 << 30

_local = threading.local()
_used = [0] * GPUS


def current():
    return getattr(_local, "number", 0)


def make_current(number):
    _local.number = number


def used():
    return _used[current()]


def reserve(n_bytes):
    """Count an allocation on the current device, whose number is returned."""
    number = current()
    if _used[number] + n_bytes > MEMORY:
        raise OutOfMemoryError(f"{n_bytes} bytes")
    _used[number] += n_bytes
    return number


def release(number, n_bytes):
    _used[number] -= n_bytes


class Device:
    compute_capability = "90"

    def __init__(self, number=None):
        self.id = current() if number is None else int(number)
        self._before = []

    @property
    def attributes(self):
        return {
            "MultiProcessorCount": PROCESSORS,
            "MaxSharedMemoryPerBlockOptin": 227 << 10,
            "MaxSharedMemoryPerMultiprocessor": 228 << 10,
            "MemoryClockRate": 3201000,
            "GlobalMemoryBusWidth": 6144,
        }

    def use(self):
        make_current(self.id)

    def synchronize(self):
        check(library.emu_synchronize())

    def __enter__(self):
        self._before.append(current())
        self.use()
        return self

    def __exit__(self, *error):
        make_current(self._before.pop())

    def __eq__(self, other):
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self):
        return hash(self.id)
