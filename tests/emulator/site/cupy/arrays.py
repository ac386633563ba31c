"""Device arrays: arrays of NumPy in memory of the emulator. Operations of the host wait for all streams first."""

import ctypes
import math

import numpy as np
from emulator import library

from cupy.cuda import device, streams

_GARBAGE = 0xCB  # new memory holds it
_MOST_GARBAGE = 1 << 26  # bytes


class _Memory:
    def __init__(self, n_bytes):
        self._room = max(n_bytes, 1)
        self._device = device.reserve(n_bytes)
        self._n_bytes = n_bytes
        self._address = library.emu_malloc(ctypes.c_size_t(self._room))
        self.__array_interface__ = {"data": (self._address, False), "shape": (n_bytes,), "typestr": "|u1", "version": 3}

    def __del__(self):
        if not hasattr(self, "_address"):  # there was no room
            return
        library.emu_synchronize()
        library.emu_free(ctypes.c_void_p(self._address), ctypes.c_size_t(self._room))
        device.release(self._device, self._n_bytes)


class _Pointer:
    def __init__(self, address):
        self.ptr = address

    def memset_async(self, value, n_bytes, stream=None):
        stream = stream or streams.get_current_stream()
        library.emu_fill(ctypes.c_uint64(stream.ptr), ctypes.c_void_p(self.ptr), value, ctypes.c_size_t(n_bytes))


class ndarray(np.ndarray):
    __array_priority__ = 100
    number = None

    def __array_finalize__(self, other):
        self.number = getattr(other, "number", None)

    @property
    def data(self):
        return _Pointer(self.ctypes.data)

    @property
    def __cuda_array_interface__(self):
        return self.__array_interface__

    @property
    def device(self):
        return device.Device(self.number)

    def get(self, stream=None, order="C", out=None, blocking=True):
        if out is None:
            return _on_host(self).copy()
        out[...] = _on_host(self)
        return out

    def set(self, values, stream=None):
        values = np.ascontiguousarray(values, self.dtype)
        assert values.shape == self.shape and self.flags.c_contiguous
        stream = stream or streams.get_current_stream()
        places = ctypes.c_void_p(self.ctypes.data), ctypes.c_void_p(values.ctypes.data)
        library.emu_upload(ctypes.c_uint64(stream.ptr), *places, ctypes.c_size_t(values.nbytes))

    def fill(self, value):
        _on_host(self).fill(value)

    def __getitem__(self, key):
        library.emu_synchronize()
        item = super().__getitem__(key)
        return item if isinstance(item, np.ndarray) else _on_device(item)

    def __setitem__(self, key, value):
        library.emu_synchronize()
        super().__setitem__(key, value)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        if out is not None:
            options["out"] = tuple(map(_on_host, out))
        made = getattr(ufunc, method)(*map(_on_host, inputs), **options)
        return _on_device(made) if out is None else out[0]

    def __array_function__(self, function, types, args, options):
        return _on_device(function(*_on_host(args), **_on_host(options)))


def _method(name):
    def call(self, *args, **options):
        return _on_device(getattr(np.ndarray, name)(_on_host(self), *args, **options))

    return call


for _name in ("astype", "copy", "sum", "max", "min", "mean", "argmax", "argmin", "all", "any"):
    setattr(ndarray, _name, _method(_name))
for _name in ("item", "tolist", "tobytes"):
    setattr(ndarray, _name, lambda self, *args, _name=_name: getattr(np.ndarray, _name)(_on_host(self), *args))


def _on_host(value):
    """The same with arrays of NumPy that share the memory."""
    if isinstance(value, ndarray):
        library.emu_synchronize()
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_on_host, value))
    return {key: _on_host(each) for key, each in value.items()} if isinstance(value, dict) else value


def _on_device(value):
    if isinstance(value, tuple):
        return tuple(map(_on_device, value))
    value = np.asarray(value)
    made = empty(value.shape, value.dtype)
    made.view(np.ndarray)[...] = value
    return made


def empty(shape, dtype=np.float32):
    shape, dtype = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape), np.dtype(dtype)
    memory = np.asarray(_Memory(math.prod(map(int, shape)) * dtype.itemsize))
    if memory.nbytes <= _MOST_GARBAGE:
        memory[:] = _GARBAGE
    made = memory.view(dtype).reshape(shape).view(ndarray)
    made.number = device.current()
    return made


def full(shape, value, dtype=None):
    made = empty(shape, np.asarray(value).dtype if dtype is None else dtype)
    made.view(np.ndarray)[...] = value
    return made


def zeros(shape, dtype=np.float32):
    return full(shape, 0, dtype)


def ones(shape, dtype=np.float32):
    return full(shape, 1, dtype)


def empty_like(other, dtype=None):
    return empty(other.shape, other.dtype if dtype is None else dtype)


def zeros_like(other, dtype=None):
    return zeros(other.shape, other.dtype if dtype is None else dtype)


def array(values, dtype=None):
    return _on_device(np.array(_on_host(values), dtype))


def asarray(values, dtype=None):
    return values if isinstance(values, ndarray) and dtype in (None, values.dtype) else array(values, dtype)


def ascontiguousarray(values, dtype=None):
    return asarray(values, dtype) if values.flags.c_contiguous else array(values, dtype)


def numpy_function(name):
    """A function of NumPy for device arrays."""
    function = getattr(np, name)
    return lambda *args, **options: _on_device(function(*_on_host(args), **_on_host(options)))


class _Pool:
    def used_bytes(self):
        return device.used()

    total_bytes = used_bytes

    def free_bytes(self):
        return 0

    def free_all_blocks(self):
        pass


_POOL = _Pool()


def get_default_memory_pool():
    return _POOL
