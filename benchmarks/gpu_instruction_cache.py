"""Cycles of an instruction of a loop by the size of its machine code: how much code a multiprocessor keeps.

    python benchmarks/gpu_instruction_cache.py

A loop of float32 FMAs without a branch inside, by one warp and by eight of a block, on one multiprocessor and on all. The
last ten passes through the loop are timed.
"""

import cupy
import numpy as np

from dflash.kernels.gpu.capabilities import capabilities

SIZES = 8, 24, 32, 48, 64, 96, 112, 120, 128, 136, 144, 160, 192, 256, 384  # KiB
WARPS, PASSES, FIRST = (1, 8), 12, 2
INSTRUCTION = 16  # bytes
SOURCE = r"""
extern "C" __global__ void run(float* out, long long* cycles, float a, int passes, int first) {
    float x0 = a, x1 = a + 1, x2 = a + 2, x3 = a + 3;
    long long start = 0;
#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        if (pass == first) start = clock64();
#pragma unroll
        for (int i = 0; i < GROUPS; ++i) {
            x0 = __fmaf_rn(x0, a, x1);
            x1 = __fmaf_rn(x1, a, x2);
            x2 = __fmaf_rn(x2, a, x3);
            x3 = __fmaf_rn(x3, a, x0);
        }
    }
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - start;
    out[blockIdx.x * blockDim.x + threadIdx.x] = x0 + x1 + x2 + x3;
}
"""


def cycles(size, warps, blocks):
    """Return the median over the blocks of the cycles of an instruction of a loop of `size` KiB."""
    groups = size * 1024 // (4 * INSTRUCTION)
    kernel = cupy.RawKernel(SOURCE, "run", options=("-std=c++17", f"-DGROUPS={groups}"), backend="nvrtc")
    out, took = cupy.zeros(blocks * 32 * warps, np.float32), cupy.zeros(blocks, np.int64)
    kernel((blocks,), (32 * warps,), (out, took, np.float32(0.5), np.int32(PASSES), np.int32(FIRST)))
    return float(np.median(took.get())) / (PASSES - FIRST) / (4 * groups)


def main():
    """Print a table."""
    columns = [(warps, blocks) for warps in WARPS for blocks in (1, capabilities().processors)]
    print("KiB of code; cycles an instruction for " + ", ".join(f"{w} warps x {b} blocks" for w, b in columns))
    for size in SIZES:
        print(f"{size:4}  " + "  ".join(f"{cycles(size, *column):6.2f}" for column in columns), flush=True)


if __name__ == "__main__":
    main()
