// out = half(x / sqrt(mean(x^2) + eps) * weight * silu(gate)), the mean over the VALUES of a head; gated.cuh says how.
//
// A warp has a head of a row, of which eight threads have a part at a time. Grid (rows * HEADS / 8, rounded up), block 256.
// Macros: HEADS, VALUES; SPLIT, parts of the sum; STRIDE and OFFSET, of the rows of x and of a row's first value.
// Bytes: 10 * HEADS * VALUES a row.
#if !defined(HEADS) || !defined(VALUES) || !defined(SPLIT) || !defined(STRIDE) || !defined(OFFSET)
#error "HEADS, VALUES, SPLIT, STRIDE and OFFSET must be defined"
#endif
#include "../formats/half.cuh"
#include "../launch.cuh"
#include "gated.cuh"

constexpr int AT_ONCE = 32 / ADDED, OWN = VALUES / SPLIT, PARTS = (SPLIT + AT_ONCE - 1) / AT_ONCE, EACH = OWN / ADDED;
static_assert(OWN % ADDED == 0, "eight threads have a part");

extern "C" __global__ void __launch_bounds__(256) gated_norm(
    const float* x, const float* gate, const float* weight, float eps, const int* counts, unsigned short* out) {
    dependents_may_launch();
    wait_for_inputs();
    const int lane = threadIdx.x % ADDED, first = threadIdx.x % 32 / ADDED;
    const size_t head = (size_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (head >= (size_t)counts[0] * HEADS) return;
    const float* const from = x + head / HEADS * STRIDE + OFFSET + head % HEADS * VALUES;
    float mine[PARTS][EACH], sum[PARTS];
#pragma unroll
    for (int j = 0; j < PARTS; ++j) {
        const int part = first + j * AT_ONCE;
        sum[j] = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            mine[j][i] = part < SPLIT ? from[part * OWN + i * ADDED + lane] : 0.0f;
            sum[j] = __fmaf_rn(mine[j][i], mine[j][i], sum[j]);
        }
#pragma unroll
        for (int i = ADDED / 2; i; i /= 2) sum[j] = __fadd_rn(sum[j], __shfl_xor_sync(~0u, sum[j], i));
    }
    float total = 0.0f;
#pragma unroll
    for (int p = 0; p < SPLIT; ++p) {
        const float part = __shfl_sync(~0u, sum[p / AT_ONCE], p % AT_ONCE * ADDED);
        total = p ? __fadd_rn(total, part) : part;
    }
    const float scale = scale_of(total, eps);
#pragma unroll
    for (int j = 0; j < PARTS; ++j)
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const int part = first + j * AT_ONCE, v = part * OWN + i * ADDED + lane;
            if (part < SPLIT) out[head * VALUES + v] = gated(mine[j][i], scale, weight[v], gate[head * VALUES + v]);
        }
}
