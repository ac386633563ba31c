// Soft cap of logits, in place: x = cap * tanh(x / cap).
//
// Grid (width / 1024 rounded up, rows), block 256, no shared memory. A thread handles four elements of a row, 256 apart.
// `width`: elements of a row. Bytes: 8 an element, 4 read and 4 written.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/types.cuh"

extern "C" __global__ void __launch_bounds__(256) soft_cap(float* x, int width, float cap) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    float* row = x + (size_t)blockIdx.y * width;
    UNROLL for (int i = 0; i < 4; ++i) {
        const int at = blockIdx.x * 1024 + i * 256 + threadIdx.x;
        if (at < width) row[at] = __fmul_rn(cap, tanhf(__fdiv_rn(row[at], cap)));
    }
}
