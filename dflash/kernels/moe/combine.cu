// out += what the experts of each row say. Grid (WIDTH over 1024, rows), block 256.
// Macros: WIDTH, a multiple of 4; N_USED. Bytes: 4 * WIDTH * (N_USED + 3) for each row.
#include "../gpu/include/pdl.cuh"
#include "combine.cuh"

#if !defined(WIDTH) || !defined(N_USED)
#error "WIDTH and N_USED must be defined"
#endif
constexpr int SLOTS = N_USED + 1;

extern "C" __global__ void __launch_bounds__(256)
combine(const float* product, const float* factors, const int* counts, int first_row, float* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int k = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (first_row + (int)blockIdx.y >= counts[0] || k >= WIDTH) return;
    float4 v[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) {
        v[slot] = __ldcg((const float4*)(product + ((size_t)blockIdx.y * SLOTS + slot) * WIDTH + k));
    }
    float4* to = (float4*)(out + (size_t)(first_row + blockIdx.y) * WIDTH + k);
    float4 total = *to;
    float of_row[SLOTS];
#pragma unroll
    for (int slot = 0; slot < SLOTS; ++slot) of_row[slot] = __ldcg(factors + blockIdx.y * SLOTS + slot);
    total.x = __fadd_rn(total.x, combine<SLOTS>(of_row, [&](int slot) { return v[slot].x; }));
    total.y = __fadd_rn(total.y, combine<SLOTS>(of_row, [&](int slot) { return v[slot].y; }));
    total.z = __fadd_rn(total.z, combine<SLOTS>(of_row, [&](int slot) { return v[slot].z; }));
    total.w = __fadd_rn(total.w, combine<SLOTS>(of_row, [&](int slot) { return v[slot].w; }));
    *to = total;
}
