// Sum of a stream and a normed row: out = (out + x / sqrt(mean(x ** 2) + eps) * weight) * scale. A block keeps its row in
// registers.
//
// Grid (rows), block THREADS, shared memory: one float a warp (static). Macros: those of row.cuh; CLEAR, 1 to leave zeros in
// x. Bytes of a row: 12 * ROW_DIM, with CLEAR 16 * ROW_DIM. The order of the additions depends on ROW_DIM and THREADS only.
#include "../gpu/include/pdl.cuh"
#include "row.cuh"

#ifndef CLEAR
#error "CLEAR must be defined"
#endif

extern "C" __global__ void __launch_bounds__(THREADS)
add_norm(float* x, const float* weight, float eps, float scale, float* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const size_t start = (size_t)blockIdx.x * N_VECTORS;
    RowVector row[PER_THREAD];
    const float factor = load_row(row, (const RowVector*)x + start, eps);
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        if (!in_row(i)) continue;
        const RowVector gain = ((const RowVector*)weight)[vector_index(i)];
        RowVector* to = (RowVector*)out + start + vector_index(i);
        RowVector sum = *to, zeros = {};
        UNROLL for (int j = 0; j < VECTOR; ++j) sum.v[j] = __fmaf_rn(row[i].v[j] * factor, gain.v[j], sum.v[j]) * scale;
        *to = sum;
        if (CLEAR) ((RowVector*)x)[start + vector_index(i)] = zeros;
    }
}
