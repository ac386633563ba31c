// out = half(x / sqrt(mean(x^2) + eps) * weight * silu_fast(gate)), the mean over the VALUES of a head.
//
// A warp has a head of a row. Grid (rows * HEADS / 8, rounded up), block 256.
// Macros: HEADS, VALUES.
// Bytes: 10 * HEADS * VALUES a row.
#if !defined(HEADS) || !defined(VALUES)
#error "HEADS and VALUES must be defined"
#endif
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

constexpr int EACH = (VALUES + 31) / 32;

extern "C" __global__ void __launch_bounds__(256) gated_norm(
    const float* x, const float* gate, const float* weight, float eps, const int* counts, unsigned short* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int lane = threadIdx.x % 32;
    const long long head = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (head >= (long long)counts[0] * HEADS) return;
    float mine[EACH], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int v = 32 * i + lane;
        mine[i] = VALUES % 32 == 0 || v < VALUES ? x[head * VALUES + v] : 0.0f;
        sum = __fmaf_rn(mine[i], mine[i], sum);
    }
    const float factor = __fdiv_rn(1.0f, sqrtf(warp_sum(sum) * (1.0f / VALUES) + eps));
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int v = 32 * i + lane;
        if (VALUES % 32 != 0 && v >= VALUES) continue;
        const float z = gate[head * VALUES + v];
        out[head * VALUES + v] = half_saturated(mine[i] * factor * weight[v] * silu_fast(z));
    }
}
