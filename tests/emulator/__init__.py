"""Emulated GPUs: CUDA kernels are compiled by g++ and run on the CPU, each thread of a block as a fiber.

Use it as a pytest plugin, ``PYTHONPATH=tests python -m pytest -p emulator tests/gpu/test_gpu_norm.py``, or import it before
CuPy. It loads a libcuda.so.1 of its own and puts a package `cupy` in front of the real one; dflash runs unchanged.

Results, synchronisation and faults are those of the sources. Lanes that diverge, barriers with wrong counts, misaligned
copies, and accesses beyond shared memory or 512 bytes and more beyond the end of an array end a launch with an error.
Kernels that wait for each other without end are printed. Times are not those of a GPU, nor the last bits: sums of tensor
cores and approximate functions are rounded otherwise. A copy is complete when it begins, so a missing wait for it is not
found. A kernel is compiled when it is launched first, and only then may g++ refuse it.

Environment: ``EMULATOR_GPUS`` (1) and ``EMULATOR_PROCESSORS`` (132), the multiprocessors of each; ``EMULATOR_SEED`` shuffles
the order in which warps run, which finds missing barriers.
"""

import ctypes
import sys
from pathlib import Path

from emulator import build

sys.path.insert(0, str(Path(__file__).parent / "site"))
library = ctypes.CDLL(str(build.runtime()), mode=ctypes.RTLD_GLOBAL)
"""The emulator; its name is libcuda.so.1, so later requests for the driver get it, too."""
for _name in ("emu_malloc", "emu_function", "emu_end_capture"):
    getattr(library, _name).restype = ctypes.c_void_p
library.emu_record.restype = ctypes.c_uint64
