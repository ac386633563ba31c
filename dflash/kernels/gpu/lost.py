"""Recognise GPU errors after which a process can no longer use the device."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dflash.errors import DeviceLost

STICKY = frozenset((4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))
"""CUDA error codes after which every further call of the process fails.

According to CUDA's manual the process must end or the device be reset. The driver (``CUresult``) and the runtime
(``cudaError_t``) number them alike: unloading 4, ECC 214, NVLink 220, contained fault 226, illegal address 700, launch
timeout 702, context destroyed 709, assert 710, hardware stack 714, illegal instruction 715, misaligned address 716, invalid
address space 717, invalid program counter 718, launch failure 719, tensor memory leak 721.
"""

_CUPY_ERRORS = ("CUDARuntimeError", "CUDADriverError")
_OF_A_WAIT = 719  # error of a kernel that has waited too long for another GPU

_split: dict[int, None] = {}


def is_lost(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, means that the device is lost.

    error: error to inspect, with its causes. CuPy's errors are recognised by class name and ``status``, without CuPy.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, DeviceLost):
            return True
        if type(error).__name__ in _CUPY_ERRORS and getattr(error, "status", None) in STICKY:
            return True
        error = error.__cause__ or error.__context__
    return False


def watch(numbers: Sequence[int]) -> None:
    """Let `first_failure` also look at these GPUs, which wait for each other."""
    _split.update(dict.fromkeys(numbers))


def first_failure(status: int) -> str:
    """Return the end of a message that names the GPU of a split that failed first.

    A GPU that fails leaves others waiting. Their waits end with an error, too, which is often found first.

    Returns: empty if the process has no split or `status` does not mean that a device is lost. Several GPUs are named if a
        failure has spread and the first one is unknown.
    """
    if status not in STICKY or not _split:
        return ""
    import cupy

    runtime, codes = cupy.cuda.runtime, dict[int, int]()
    with suppress(runtime.CUDARuntimeError):
        current = runtime.getDevice()
        codes = {number: _status_of(number, runtime) for number in _split}
        runtime.setDevice(current)
    failed = {number: code for number, code in codes.items() if code in STICKY}
    first = {number: code for number, code in failed.items() if code != _OF_A_WAIT} or failed
    names = " or ".join(f"cuda:{number}" for number in first)
    return f"; first failure: {names}: {runtime.CUDARuntimeError(next(iter(first.values())))}" if first else ""


def _status_of(number: int, runtime: Any) -> int:
    """Return the CUDA error code of a device, which becomes the current one, without waiting for it."""
    try:
        runtime.setDevice(number)
        return int(runtime.streamQuery(0) or 0)
    except runtime.CUDARuntimeError as error:
        return int(error.status)
