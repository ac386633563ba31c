"""Streams, events and graphs: handles of queues in the emulator."""

import ctypes
import itertools
import threading
import time

from emulator import library

from cupy.cuda import device
from cupy.cuda.errors import check

_local = threading.local()
_numbers = itertools.count(1)
_handle = ctypes.c_uint64


class Stream:
    def __init__(self, *, non_blocking=False, number=None):
        self.device_id = device.current()
        self.ptr = self.device_id << 32 | (next(_numbers) if number is None else number)

    @property
    def done(self):
        return bool(library.emu_stream_done(_handle(self.ptr)))

    def synchronize(self):
        if not self.done:
            library.emu_synchronize()
        check(library.emu_failure())

    def record(self, event=None):
        return (event or Event()).record(self)

    def wait_event(self, event):
        if event.captured:
            library.emu_capture(_handle(self.ptr), _handle(event.captured))
        else:
            library.emu_wait(_handle(self.ptr), _handle(event.moment))

    def begin_capture(self, mode=None):
        library.emu_capture(_handle(self.ptr), _handle(0))

    def end_capture(self):
        return Graph(library.emu_end_capture(_handle(self.ptr)))

    def __enter__(self):
        _entered().append(self)
        return self

    def __exit__(self, *error):
        _entered().pop()

    def __eq__(self, other):
        return isinstance(other, Stream) and self.ptr == other.ptr

    def __hash__(self):
        return hash(self.ptr)


class Event:
    def __init__(self, *, disable_timing=False):
        self.moment, self.captured, self.time = 0, 0, 0.0

    def record(self, stream=None):
        stream = stream or get_current_stream()
        self.time = time.perf_counter()
        self.captured = stream.ptr if library.emu_is_capturing(_handle(stream.ptr)) else 0
        self.moment = library.emu_record(_handle(stream.ptr))
        return self

    @property
    def done(self):
        return bool(library.emu_event_done(_handle(self.moment)))

    def synchronize(self):
        if not self.done:
            library.emu_synchronize()
        check(library.emu_failure())


class Graph:
    def __init__(self, graph):
        self.graph = graph

    def upload(self, stream):
        pass

    def launch(self, stream=None):
        library.emu_launch_graph(_handle((stream or get_current_stream()).ptr), ctypes.c_void_p(self.graph))


def _entered():
    if not hasattr(_local, "streams"):
        _local.streams = []
    return _local.streams


def get_current_stream():
    on_device = [stream for stream in _entered() if stream.device_id == device.current()]
    return on_device[-1] if on_device else Stream(number=0)


Stream.null = Stream(number=0)


def get_elapsed_time(begin, end):
    return 1e3 * max(end.time - begin.time, 1e-9)
