// Gated RMS norm: out = half(x / sqrt(mean(x^2) + eps) * weight * silu(gate)), the mean over the VALUE_DIM elements of a
// head.
//
// A warp handles a head of a row. Grid (rows * VALUE_HEADS / 8 rounded up), block 256, no shared memory. Macros:
// VALUE_HEADS, VALUE_DIM, see shape.cuh. Bytes: 10 * VALUE_HEADS * VALUE_DIM a row.
#if !defined(VALUE_HEADS) || !defined(VALUE_DIM)
#error "VALUE_HEADS and VALUE_DIM must be defined"
#endif
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

constexpr int PER_LANE = (VALUE_DIM + 31) / 32;

extern "C" __global__ void __launch_bounds__(256)
gated_norm(const float* x, const float* gate, const float* weight, float eps, const int* counts, unsigned short* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int lane = threadIdx.x % 32;
    const long long head = (long long)blockIdx.x * 8 + threadIdx.x / 32;
    if (head >= (long long)counts[0] * VALUE_HEADS) return;
    float values[PER_LANE], sum = 0.0f;
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const int v = 32 * i + lane;
        values[i] = VALUE_DIM % 32 == 0 || v < VALUE_DIM ? x[head * VALUE_DIM + v] : 0.0f;
        sum = __fmaf_rn(values[i], values[i], sum);
    }
    const float factor = __fdiv_rn(1.0f, sqrtf(__fmaf_rn(warp_sum(sum), 1.0f / VALUE_DIM, eps)));
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const int v = 32 * i + lane;
        if (VALUE_DIM % 32 != 0 && v >= VALUE_DIM) continue;
        const float z = gate[head * VALUE_DIM + v];
        out[head * VALUE_DIM + v] = half_saturated(values[i] * factor * weight[v] * silu_fast(z));
    }
}
