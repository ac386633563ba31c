"""Plugin for pytest: tests that compile CUDA kernels make all constants, and compile nothing."""

import nvrtc

nvrtc.compiled = lambda path, arch=90, **constants: nvrtc.source(nvrtc.KERNELS / path) == ""
