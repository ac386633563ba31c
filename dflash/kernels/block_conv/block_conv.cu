// out[i, c] = sum over t of (base[t, c] + change[i, t, c / GROUP_SIZE]) * x[i - t, c]: the short convolution of a draft's block.
//
// Grid (columns / 1024, rows), block 256: a thread has four columns. A block is BLOCK_ROWS rows, and a row before it is zero.
// Macros: MODEL_DIM, columns; GROUP_SIZE, columns that share a change; TAPS; BLOCK_ROWS; SIDE of `change`, (rows, 2, TAPS, MODEL_DIM / GROUP_SIZE), and of
// `base`, (2, TAPS, MODEL_DIM); ADD, whether `out` is added to in float32, or halves are written. Bytes: 8 * TAPS * MODEL_DIM a row.
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"

#if !defined(MODEL_DIM) || !defined(GROUP_SIZE) || !defined(TAPS) || !defined(BLOCK_ROWS) || !defined(SIDE) || !defined(ADD)
#error "MODEL_DIM, GROUP_SIZE, TAPS, BLOCK_ROWS, SIDE and ADD must be defined"
#endif
static_assert(MODEL_DIM % 4 == 0 && MODEL_DIM % GROUP_SIZE == 0, "a thread has four columns");

extern "C" __global__ void __launch_bounds__(256)
block_conv(const float* x, const float* change, const float* base, unsigned char* out) {
    launch_dependent_grids();
    const int at = 4 * (blockIdx.x * 256 + threadIdx.x), row = blockIdx.y;
    wait_on_dependent_grids();
    if (at >= MODEL_DIM) return;
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        if (t > row % BLOCK_ROWS) break;
        const float4 from = *(const float4*)(x + (size_t)(row - t) * MODEL_DIM + at);
        const float4 tap = *(const float4*)(base + (SIDE * TAPS + t) * MODEL_DIM + at);
        const float* own = change + ((size_t)(2 * row + SIDE) * TAPS + t) * (MODEL_DIM / GROUP_SIZE);
        const float xs[4] = {from.x, from.y, from.z, from.w}, taps[4] = {tap.x, tap.y, tap.z, tap.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) sum[j] = __fmaf_rn(__fadd_rn(taps[j], own[(at + j) / GROUP_SIZE]), xs[j], sum[j]);
    }
    if (ADD) {
        float4* to = (float4*)((float*)out + (size_t)row * MODEL_DIM + at);
        const float4 old = *to;
        *to = make_float4(old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]);
    } else {
        *(uint2*)((u16*)out + (size_t)row * MODEL_DIM + at) =
            make_uint2(half_saturated(sum[0]) | (u32)half_saturated(sum[1]) << 16,
                       half_saturated(sum[2]) | (u32)half_saturated(sum[3]) << 16);
    }
}
