// Combine the expert outputs of each row: out += sum over slots of factor * product.
//
// Grid (MODEL_DIM / 1024 rounded up, rows), block 256, no shared memory. A thread handles four columns. Macros: MODEL_DIM, a
// multiple of 4; N_USED and N_SHARED, see slots.cuh. Bytes: 4 * MODEL_DIM * (SLOTS + 2) a row.
#include "../gpu/include/pdl.cuh"
#include "combine.cuh"
#include "slots.cuh"

#ifndef MODEL_DIM
#error "MODEL_DIM must be defined"
#endif

extern "C" __global__ void __launch_bounds__(256)
combine(const float* product, const float* factors, const int* counts, int first_row, float* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int k = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (first_row + (int)blockIdx.y >= counts[0] || k >= MODEL_DIM) return;
    float4 v[SLOTS];
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
        v[slot] = __ldcg((const float4*)(product + ((size_t)blockIdx.y * SLOTS + slot) * MODEL_DIM + k));
    }
    float4* to = (float4*)(out + (size_t)(first_row + blockIdx.y) * MODEL_DIM + k);
    float4 total = *to;
    float of_row[SLOTS];
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) of_row[slot] = __ldcg(factors + blockIdx.y * SLOTS + slot);
    total.x = __fadd_rn(total.x, combine<SLOTS>(of_row, [&](int slot) { return v[slot].x; }));
    total.y = __fadd_rn(total.y, combine<SLOTS>(of_row, [&](int slot) { return v[slot].y; }));
    total.z = __fadd_rn(total.z, combine<SLOTS>(of_row, [&](int slot) { return v[slot].z; }));
    total.w = __fadd_rn(total.w, combine<SLOTS>(of_row, [&](int slot) { return v[slot].w; }));
    *to = total;
}
