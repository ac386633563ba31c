// out = x / sqrt(mean(x ** 2) + eps) * weight. A block holds its row in registers, so the row is read once.
//
// Grid rows, block THREADS. Macros: ROW_DIM, values of a row; THREADS, a multiple of 32.
// half and full are where a row goes, saturated float16 and float32; one of them may be null.
// Bytes of a row: 4 * ROW_DIM read, 2 * ROW_DIM or 4 * ROW_DIM written. The order of a sum depends on ROW_DIM and THREADS alone.
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(ROW_DIM) || !defined(THREADS)
#error "ROW_DIM and THREADS must be defined"
#endif
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of warps");

constexpr int STEP = ROW_DIM % 4 ? 1 : 4, STEPS = ROW_DIM / STEP, EACH = (STEPS + THREADS - 1) / THREADS, WARPS = THREADS / 32;

struct alignas(4 * STEP) Values {
    float v[STEP];
};
struct alignas(2 * STEP) Halves {
    u16 v[STEP];
};

__device__ __forceinline__ float sum_of_block(float value) {
    __shared__ float sums[WARPS];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();
    return warp_sum(threadIdx.x % 32 < WARPS ? sums[threadIdx.x % 32] : 0.0f);
}

// The place of a thread's i-th piece; the last ones may lie past the row.
__device__ __forceinline__ int place(int i) { return i * THREADS + threadIdx.x; }
__device__ __forceinline__ bool inside(int i) { return STEPS % THREADS == 0 || place(i) < STEPS; }

extern "C" __global__ void __launch_bounds__(THREADS)
rms_norm(const float* x, const float* weight, unsigned short* half, float* full, float eps) {
    launch_dependent_grids();
    Values gain[EACH], row[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (inside(i)) gain[i] = ((const Values*)weight)[place(i)];
    }
    wait_on_dependent_grids();
    const size_t start = (size_t)blockIdx.x * STEPS;
    float squares = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (inside(i)) row[i] = ((const Values*)x)[start + place(i)];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!inside(i)) continue;
#pragma unroll
        for (int j = 0; j < STEP; ++j) squares = __fmaf_rn(row[i].v[j], row[i].v[j], squares);
    }
    const float factor = __frsqrt_rn(sum_of_block(squares) / ROW_DIM + eps);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!inside(i)) continue;
        Halves rounded;
#pragma unroll
        for (int j = 0; j < STEP; ++j) {
            row[i].v[j] = row[i].v[j] * factor * gain[i].v[j];
            rounded.v[j] = half_saturated(row[i].v[j]);
        }
        if (half) ((Halves*)half)[start + place(i)] = rounded;
        if (full) ((Values*)full)[start + place(i)] = row[i];
    }
}
