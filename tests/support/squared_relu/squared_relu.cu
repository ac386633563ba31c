// out = max(x, 0) ** 2.
//
// Grid (ROW_DIM / 256, rows), block 256: each thread processes one value. Macro: ROW_DIM, values of a row.
// Bytes: 4 read and 4 written per value.
#include "../gpu/include/pdl.cuh"

#ifndef ROW_DIM
#error "ROW_DIM must be defined"
#endif

extern "C" __global__ void __launch_bounds__(256) squared_relu(const float* x, float* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int column = blockIdx.x * 256 + threadIdx.x;
    if (column >= ROW_DIM) return;
    const size_t at = (size_t)blockIdx.y * ROW_DIM + column;
    const float value = fmaxf(x[at], 0.0f);
    out[at] = value * value;
}
