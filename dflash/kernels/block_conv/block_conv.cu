// Short causal convolution over a block of draft rows (DFlash 2):
// out[i, c] = sum over t of (base[t, c] + change[i, t, c / GROUP_SIZE]) * x[i - t, c]. Rows before the first row of a block
// count as zero.
//
// Grid (MODEL_DIM / 1024 rounded up, rows), block 256, no shared memory. A thread computes four channels of a row.
// Macros: MODEL_DIM, channels; GROUP_SIZE, channels that share a change; TAPS; BLOCK_ROWS, rows of a block; SIDE, index 0 or
// 1 of this convolution in `change`, (rows, 2, TAPS, MODEL_DIM / GROUP_SIZE), and in `base`, (2, TAPS, MODEL_DIM); ADD, 1
// adds to `out` in float32, 0 writes `out` as float16.
// Bytes: 8 * TAPS * MODEL_DIM a row, mostly from the L2 cache.
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
    UNROLL for (int t = 0; t < TAPS; ++t) {
        if (t > row % BLOCK_ROWS) break;
        const float4 input = *(const float4*)(x + (size_t)(row - t) * MODEL_DIM + at);
        const float4 tap = *(const float4*)(base + (SIDE * TAPS + t) * MODEL_DIM + at);
        const float* row_change = change + ((size_t)(2 * row + SIDE) * TAPS + t) * (MODEL_DIM / GROUP_SIZE);
        const float xs[4] = {input.x, input.y, input.z, input.w}, taps[4] = {tap.x, tap.y, tap.z, tap.w};
        UNROLL for (int j = 0; j < 4; ++j)
            sum[j] = __fmaf_rn(__fadd_rn(taps[j], row_change[(at + j) / GROUP_SIZE]), xs[j], sum[j]);
    }
    if (ADD) {
        float4* target = (float4*)((float*)out + (size_t)row * MODEL_DIM + at);
        const float4 old = *target;
        *target = make_float4(old.x + sum[0], old.y + sum[1], old.z + sum[2], old.w + sum[3]);
    } else {
        *(uint2*)((u16*)out + (size_t)row * MODEL_DIM + at) = half4_saturated(sum[0], sum[1], sum[2], sum[3]);
    }
}
