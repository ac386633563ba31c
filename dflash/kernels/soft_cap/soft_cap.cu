// x = cap * tanh(x / cap), in place.
//
// Grid (numbers of a row / 1024, rows), block 256: a thread has four numbers, 256 apart. Bytes: 8 a number.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256) soft_cap(float* x, int width, float cap) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    float* row = x + (size_t)blockIdx.y * width;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int at = blockIdx.x * 1024 + i * 256 + threadIdx.x;
        if (at < width) row[at] = __fmul_rn(cap, tanhf(__fdiv_rn(row[at], cap)));
    }
}
