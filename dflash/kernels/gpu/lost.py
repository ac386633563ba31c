"""Recognise GPU errors after which a process can no longer use the device."""

from dflash.errors import DeviceLost

STICKY = frozenset((4, 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))
"""CUDA error codes after which every further call of the process fails.

According to CUDA's manual the process must end or the device be reset. The driver (``CUresult``) and the runtime
(``cudaError_t``) number them alike: unloading 4, ECC 214, NVLink 220, contained fault 226, illegal address 700, launch
timeout 702, context destroyed 709, assert 710, hardware stack 714, illegal instruction 715, misaligned address 716, invalid
address space 717, invalid program counter 718, launch failure 719, tensor memory leak 721.
"""

_CUPY_ERRORS = ("CUDARuntimeError", "CUDADriverError")


def is_lost(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, means that the device is lost.

    Parameters
    ----------
    error : BaseException or None
        Error to inspect, with its causes. CuPy's errors are recognised by class name and ``status``, without CuPy.
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
