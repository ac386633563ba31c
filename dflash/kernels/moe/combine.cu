// Combine the expert outputs of each row: out += sum over slots of factor * product.
//
// Grid (MODEL_DIM / 1024 rounded up, rows), block 256, no shared memory. A thread handles four columns. Macros: MODEL_DIM, a
// multiple of 16; N_USED and N_SHARED, see slots.cuh. Bytes: 4 * MODEL_DIM * (SLOTS + 2) a row, and 2.25 * MODEL_DIM for a
// norm behind the experts (`halves` not null).
#include "../gpu/include/pdl.cuh"
#include "combine.cuh"
#include "slots.cuh"

#ifndef MODEL_DIM
#error "MODEL_DIM must be defined"
#endif
static_assert(MODEL_DIM % 16 == 0, "sums of squares of 16 columns");

extern "C" __global__ void __launch_bounds__(256)
combine(const float* product, const float* factors, const int* counts, int first_row, const float* gain,
        unsigned short* halves, float* squares, float* out) {
    const OutputNorm norm = {gain, halves, squares};
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int k = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (first_row + (int)blockIdx.y >= counts[0] || k >= MODEL_DIM) return;
    float4 v[SLOTS];
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) {
        v[slot] = __ldcg((const float4*)(product + ((size_t)blockIdx.y * SLOTS + slot) * MODEL_DIM + k));
    }
    const size_t row = first_row + blockIdx.y;
    float4* to = (float4*)(out + row * MODEL_DIM + k);
    float4 total = *to, gains = norm.halves ? *(const float4*)(gain + k) : total;
    float of_row[SLOTS];
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) of_row[slot] = __ldcg(factors + blockIdx.y * SLOTS + slot);
    total.x = __fadd_rn(total.x, combine<SLOTS>(of_row, [&](int slot) { return v[slot].x; }));
    total.y = __fadd_rn(total.y, combine<SLOTS>(of_row, [&](int slot) { return v[slot].y; }));
    total.z = __fadd_rn(total.z, combine<SLOTS>(of_row, [&](int slot) { return v[slot].z; }));
    total.w = __fadd_rn(total.w, combine<SLOTS>(of_row, [&](int slot) { return v[slot].w; }));
    *to = total;
    if (!norm.halves) return;
    const u32 low = norm.half_of(total.x, gains.x) | (u32)norm.half_of(total.y, gains.y) << 16,
              high = norm.half_of(total.z, gains.z) | (u32)norm.half_of(total.w, gains.w) << 16;
    *(uint2*)(norm.halves + row * MODEL_DIM + k) = make_uint2(low, high);
    float sum = __fadd_rn(__fadd_rn(__fmul_rn(total.x, total.x), __fmul_rn(total.y, total.y)),
                          __fadd_rn(__fmul_rn(total.z, total.z), __fmul_rn(total.w, total.w)));
    const u32 of_sum = 15u << threadIdx.x % 32 / 4 * 4;  // the lanes of 16 columns
    UNROLL for (int m = 1; m < 4; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(of_sum, sum, m));
    if (k % 16 == 0) norm.squares[row * (MODEL_DIM / 16) + k / 16] = sum;
}
