"""Devices, streams, modules and the runtime's functions."""

from types import SimpleNamespace

from cupy.cuda import nvrtc, runtime
from cupy.cuda.device import Device
from cupy.cuda.errors import CUDADriverError, OutOfMemoryError
from cupy.cuda.modules import Module
from cupy.cuda.runtime import alloc_pinned_memory
from cupy.cuda.streams import Event, Graph, Stream, get_current_stream, get_elapsed_time

driver = SimpleNamespace(CUDADriverError=CUDADriverError)
function = SimpleNamespace(Module=Module)
memory = SimpleNamespace(OutOfMemoryError=OutOfMemoryError)
