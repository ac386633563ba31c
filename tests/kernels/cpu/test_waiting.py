"""Threads of a launch that wait for each other."""

import threading

import numpy as np

from dflash.kernels.cpu import simd
from dflash.kernels.cpu.jit import inline
from dflash.kernels.joined.cpu import _wait


@inline
def add_one(address):
    simd.fetch_add(address, 1)


def test_a_thread_waits_until_the_tasks_before_are_done():
    counter, passed = np.zeros(1, np.int64), threading.Event()
    _wait(counter.ctypes.data, 0)  # compiled, and nothing to wait for

    def wait():
        _wait(counter.ctypes.data, 2)
        passed.set()

    thread = threading.Thread(target=wait)
    thread.start()
    add_one(counter.ctypes.data)
    assert not passed.wait(0.2)  # long enough that it sleeps between looks
    add_one(counter.ctypes.data)
    assert passed.wait(60)
    thread.join()
