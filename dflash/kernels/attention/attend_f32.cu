// Attention over a float32 cache, for decode and prefill: out = softmax(q k^T / sqrt(HEAD_DIM)) v, times sigmoid(gate) if
// GATED.
//
// A block handles a row and a query head. Its warps take the positions in turn, each with its own partial sums, which are
// combined in order at the end. Ancestors in a tree are visited in the order of their depth, so a path of a tree has the
// bits of a chain.
//
// Grid (QUERY_HEADS, rows), block 32 * WARPS, shared memory 4 * WARPS * HEAD_DIM bytes and less than 1 KiB (static). Macros:
// HEAD_DIM, elements of a head; GROUP_SIZE, query heads that share a KV head; KV_HEADS; GATED, 1 if the output is gated.
// Bytes: 8 * HEAD_DIM for each row, query head and position.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(HEAD_DIM) || !defined(GROUP_SIZE) || !defined(KV_HEADS) || !defined(GATED)
#error "HEAD_DIM, GROUP_SIZE, KV_HEADS and GATED must be defined"
#endif

constexpr int PAGE = 256, PENDING = 64, WARPS = 8, QUERY_HEADS = GROUP_SIZE * KV_HEADS, PER_LANE = (HEAD_DIM + 31) / 32;

// Weight of a warp's partial result, and its sum of weights times that.
__device__ __forceinline__ float2 split_weight(float max_score, float sum, float largest) {
    const float weight = max_score == largest ? 1.0f : expf(max_score - largest);
    return make_float2(weight, __fmul_rn(sum, weight));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
attend_f32(const float* q, const float* k, const float* v, const int* counts, const int* first, const int* sequence,
           const int* parent, const int* depth, const int* length, const int* pages, int max_pages, const float* gate,
           unsigned short* out) {
    __shared__ int path[PENDING];
    __shared__ float max_scores[WARPS], sums[WARPS], outputs[WARPS][32 * PER_LANE];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y, head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (row >= counts[0]) return;
    const int s = sequence[row], begin = first[s], own = row - begin, committed = length[s], row_depth = depth[row];
    const bool chain = row_depth == own;
    if (!chain && threadIdx.x == 0) {
        for (int at = own; at >= 0; at = parent[begin + at]) path[depth[begin + at]] = at;
    }
    __syncthreads();  // `path` is complete

    const float scale = 1.0f / sqrtf((float)HEAD_DIM), minus_infinity = __int_as_float(0xff800000);
    const size_t at = (size_t)row * QUERY_HEADS + head;
    float query[PER_LANE], o[PER_LANE], max_score = minus_infinity, sum = 0.0f;
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const int d = lane + 32 * i;
        query[i] = d < HEAD_DIM ? __fmul_rn(q[at * HEAD_DIM + d], scale) : 0.0f;
        o[i] = 0.0f;
    }
    for (int position = warp; position <= committed + row_depth; position += WARPS) {
        const int index = chain || position < committed ? position : committed + path[position - committed];
        const size_t cache_row = (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
        const size_t source = (cache_row * KV_HEADS + head / GROUP_SIZE) * HEAD_DIM;
        float score = 0.0f, value[PER_LANE];
        UNROLL for (int i = 0; i < PER_LANE; ++i) {
            const int d = lane + 32 * i;
            value[i] = d < HEAD_DIM ? v[source + d] : 0.0f;
            if (d < HEAD_DIM) score = __fmaf_rn(query[i], k[source + d], score);
        }
        score = warp_sum(score);
        const float largest = fmaxf(max_score, score), rescale = expf(max_score - largest), weight = expf(score - largest);
        sum = __fmaf_rn(sum, rescale, weight);
        UNROLL for (int i = 0; i < PER_LANE; ++i) o[i] = __fmaf_rn(weight, value[i], __fmul_rn(o[i], rescale));
        max_score = largest;
    }
    UNROLL for (int i = 0; i < PER_LANE; ++i) outputs[warp][lane + 32 * i] = o[i];
    if (lane == 0) max_scores[warp] = max_score, sums[warp] = sum;
    __syncthreads();  // the partial sums of all warps are stored
    if (threadIdx.x >= HEAD_DIM) return;
    float largest = minus_infinity;
    UNROLL for (int w = 0; w < WARPS; ++w) largest = fmaxf(largest, max_scores[w]);
    float x = 0.0f;
    sum = 0.0f;
    UNROLL for (int w = 0; w < WARPS; ++w) {
        const float2 weight_sum = split_weight(max_scores[w], sums[w], largest);
        x = __fmaf_rn(outputs[w][threadIdx.x], weight_sum.x, x);
        sum = __fadd_rn(sum, weight_sum.y);
    }
    x = __fdiv_rn(x, sum);
    if (GATED) x = mul_sigmoid_rn(x, gate[(2 * at + 1) * HEAD_DIM + threadIdx.x]);
    out[at * HEAD_DIM + threadIdx.x] = half_saturated(x);
}
