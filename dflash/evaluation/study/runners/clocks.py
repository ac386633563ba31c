"""Clocks of processors; power and temperature of a GPU, read from NVIDIA's management library."""

import ctypes
import statistics
import sys
from functools import cache
from pathlib import Path
from typing import Any

_LIBRARY = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"

_SM, _MEMORY = 1, 2
"""Kinds of clocks in ``nvmlClockType_t``."""

_NUMBERS = {
    "sm_mhz": ("nvmlDeviceGetClockInfo", (_SM,), 1.0),
    "sm_max_mhz": ("nvmlDeviceGetMaxClockInfo", (_SM,), 1.0),
    "memory_mhz": ("nvmlDeviceGetClockInfo", (_MEMORY,), 1.0),
    "power_watts": ("nvmlDeviceGetPowerUsage", (), 1e-3),
    "power_limit_watts": ("nvmlDeviceGetEnforcedPowerLimit", (), 1e-3),
    "celsius": ("nvmlDeviceGetTemperature", (0,), 1.0),
}
"""Function, arguments between handle and result, and the factor to the unit of the name."""


def gpu_clocks(pci: str) -> dict[str, float] | None:
    """Return what the driver says of a GPU at this moment; None without the library or the GPU.

    pci: its bus id, see `dflash.kernels.gpu.device.bus_id`. A number that the GPU does not give is left out.
    """
    library = _library()
    handle = ctypes.c_void_p()
    if library is None or library.nvmlDeviceGetHandleByPciBusId_v2(pci.encode(), ctypes.byref(handle)):
        return None
    found: dict[str, float] = {}
    for name, (function, arguments, factor) in _NUMBERS.items():
        value = ctypes.c_uint()
        if not getattr(library, function)(handle, *arguments, ctypes.byref(value)):
            found[name] = value.value * factor
    return found or None


def cpu_clocks() -> dict[str, float] | None:
    """Return the mean clock of all cores; None where Linux does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    read = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return {"core_mhz": round(statistics.mean(read), 1)} if read else None


@cache
def _library() -> Any:
    """Return the library after its initialisation; None if there is none or it fails."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None
