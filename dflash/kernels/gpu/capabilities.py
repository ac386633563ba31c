"""Instructions and shared memory that kernels may use on a GPU; every rule that depends on the GPU asks `capabilities`.

``DFLASH_TARGET=sm_86`` applies the rules of compute capability 8.6 on a newer GPU: the same kernels, launch shapes and
limits, compiled for 8.6 and translated by the driver. Where the target is newer than a Hopper GPU, as ``sm_120`` is, its
rules apply to code for the GPU itself.
"""

import os
from functools import cache
from typing import NamedTuple

from dflash.errors import KernelError

VARIABLE = "DFLASH_TARGET"
"""Environment variable that names a target; read whenever kernels are requested."""

SHARED = {80: (164, 163), 86: (100, 99), 89: (100, 99), 90: (228, 227), 100: (228, 227), 120: (100, 99)}
"""Shared memory in KiB of a multiprocessor and of a block, by compute capability. Source: CUDA C++ Programming Guide 13.0,
table of technical specifications."""

_HOPPER = 90


class Capabilities(NamedTuple):
    """Instructions and limits that kernels may use on a GPU.

    name: the GPU whose rules apply, such as ``"sm_86"``.
    code: architecture that sources are compiled for: ``"sm_90a"`` and the like, or ``"compute_86"`` for PTX.
    processor_shared, block_shared: bytes of shared memory of a multiprocessor, and the most that a block may use.
    has_wgmma: matrix products of four warps, and tensor maps for their operands; Hopper only.
    has_clusters: clusters of blocks, and bulk copies.
    has_dependent_launches: programmatic dependent launch.
    """

    name: str
    code: str
    processors: int
    processor_shared: int
    block_shared: int
    has_wgmma: bool
    has_clusters: bool
    has_dependent_launches: bool


def capabilities(device: int | None = None) -> Capabilities:
    """Return the capabilities of a CUDA device, by default the current one, under the rules of ``DFLASH_TARGET``."""
    import cupy

    return _capabilities(cupy.cuda.Device().id if device is None else device, os.environ.get(VARIABLE, ""))


def compute_capability(device: int) -> int:
    """Return the compute capability of a CUDA device, such as 89 for 8.9."""
    import cupy

    return int(cupy.cuda.Device(device).compute_capability)


@cache
def _capabilities(device: int, wanted: str) -> Capabilities:
    import cupy
    from cupy.cuda import nvrtc

    about = cupy.cuda.Device(device).attributes
    shared = about["MaxSharedMemoryPerMultiprocessor"], about["MaxSharedMemoryPerBlockOptin"]
    supported = tuple(nvrtc.getSupportedArchs())
    return rules(compute_capability(device), about["MultiProcessorCount"], shared, supported, wanted)


def rules(
    capability: int, processors: int, shared: tuple[int, int], supported: tuple[int, ...], wanted: str = ""
) -> Capabilities:
    """Return the capabilities of a GPU.

    capability: compute capability of the GPU, such as 89 for 8.9.
    shared: bytes of shared memory of a multiprocessor and of a block.
    wanted: target such as ``"sm_86"``; empty for the GPU itself.
    """
    follows = _parsed(wanted) if wanted else capability
    if follows > capability and capability < _HOPPER:
        older = ", ".join(f"sm_{n}" for n in SHARED if n <= capability)
        raise KernelError(f"{VARIABLE}: sm_{follows} needs a GPU of 9.0 or newer, this has {capability / 10}: use {older}")
    if wanted:
        processor, block = (1024 * kib for kib in SHARED[follows])
        shared = min(shared[0], processor), min(shared[1], block)
    code = code_for(capability, supported, follows)
    newer = follows >= _HOPPER
    return Capabilities(f"sm_{follows}", code, processors, *shared, code == "sm_90a", newer, newer)


def code_for(capability: int, supported: tuple[int, ...], follows: int | None = None) -> str:
    """Return the architecture to compile for: ``sm_90a`` and the like, or ``compute_`` for PTX.

    follows: compute capability whose rules apply; by default that of the GPU.

    PTX serves an older target, and a GPU newer than the compiler. Only Hopper has an architecture-specific target, for
    `wgmma` and `setmaxnreg`: code compiled for ``sm_90a`` defines ``__CUDA_ARCH_FEAT_SM90_ALL`` and runs on no other chip.
    """
    follows = capability if follows is None else follows
    older = [n for n in supported if n <= min(capability, follows)]
    if not older:
        raise KernelError(f"this CUDA compiles for capability {min(supported)} and newer; the GPU has {capability}")
    if capability == follows == _HOPPER and _HOPPER in older:
        return "sm_90a"
    return f"{'sm' if max(older) // 10 == capability // 10 else 'compute'}_{max(older)}"


def _parsed(wanted: str) -> int:
    targets = {f"sm_{n}": n for n in SHARED}
    if wanted not in targets:
        raise KernelError(f"{VARIABLE}: {wanted!r} is no target, use one of {', '.join(targets)}")
    return targets[wanted]
