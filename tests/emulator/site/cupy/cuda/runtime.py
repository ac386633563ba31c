"""The runtime's functions."""

import ctypes

import numpy as np
from emulator import library

from cupy.cuda import device
from cupy.cuda.device import current as getDevice
from cupy.cuda.device import make_current as setDevice
from cupy.cuda.errors import CUDARuntimeError, check

memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = 1, 2, 3, 4
streamCaptureModeRelaxed = 2


def getDeviceCount():
    return device.GPUS


def getDeviceProperties(number):
    about = {"major": 9, "minor": 0, "totalGlobalMem": device.MEMORY, "multiProcessorCount": device.PROCESSORS}
    return about | {"name": b"emulated GPU"}


def deviceGetPCIBusId(number):
    return f"0000:{number:02X}:00.0"


def driverGetVersion():
    return 13000


runtimeGetVersion = driverGetVersion


def memGetInfo():
    return device.MEMORY - device.used(), device.MEMORY


def deviceCanAccessPeer(one, other):
    return 1


def deviceEnablePeerAccess(other):
    pass


def memcpyAsync(to, source, n_bytes, kind, stream):
    library.emu_copy(ctypes.c_uint64(stream), ctypes.c_void_p(to), ctypes.c_void_p(source), ctypes.c_size_t(n_bytes))


def memcpyPeerAsync(to, to_device, source, source_device, n_bytes, stream):
    memcpyAsync(to, source, n_bytes, memcpyDefault, stream)


def streamIsCapturing(stream):
    return bool(library.emu_is_capturing(ctypes.c_uint64(stream)))


def streamSynchronize(stream):
    check(library.emu_synchronize())


def streamQuery(stream):
    check(library.emu_failure())


def alloc_pinned_memory(n_bytes):
    alignment = 512
    room = np.empty(n_bytes + alignment, np.uint8)
    first = -room.ctypes.data % alignment
    return memoryview(room[first : first + n_bytes])
