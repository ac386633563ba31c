// Attention over a float32 cache, for pending rows and text alike: out = softmax(q k^T / sqrt(HEAD)) v, times sigmoid(gate).
//
// A block takes a row and a head. Its warps take the positions of the text in turn, each with its own sums, which are put
// together in order at the end; ancestors are found by their depth, so a path of a tree has the bits of a chain.
//
// Grid (heads, rows), block 32 * WARPS. Bytes: 8 * HEAD for each row, head and position.
// Macros: HEAD, GROUP, KV, GATED.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(HEAD) || !defined(GROUP) || !defined(KV) || !defined(GATED)
#error "HEAD, GROUP, KV and GATED must be defined"
#endif

constexpr int PAGE = 256, PENDING = 64, WARPS = 8, HEADS = GROUP * KV, OWN = (HEAD + 31) / 32;

__device__ __forceinline__ float2 weighed(float top, float sum, float most) {
    const float weight = top == most ? 1.0f : expf(top - most);
    return make_float2(weight, __fmul_rn(sum, weight));
}

extern "C" __global__ void __launch_bounds__(32 * WARPS)
exact(const float* q, const float* k, const float* v, const int* counts, const int* first, const int* sequence,
      const int* parent, const int* depth, const int* length, const int* pages, int max_pages, const float* gate,
      unsigned short* out) {
    __shared__ int path[PENDING];
    __shared__ float tops[WARPS], totals[WARPS], values[WARPS][32 * OWN];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y, head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (row >= counts[0]) return;
    const int s = sequence[row], begin = first[s], own = row - begin, committed = length[s], deep = depth[row];
    const bool chain = deep == own;
    if (!chain && threadIdx.x == 0) {
        for (int at = own; at >= 0; at = parent[begin + at]) path[depth[begin + at]] = at;
    }
    __syncthreads();

    const float scale = 1.0f / sqrtf((float)HEAD), nothing = __int_as_float(0xff800000);
    const size_t at = (size_t)row * HEADS + head;
    float query[OWN], o[OWN], top = nothing, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < OWN; ++i) {
        const int d = lane + 32 * i;
        query[i] = d < HEAD ? __fmul_rn(q[at * HEAD + d], scale) : 0.0f;
        o[i] = 0.0f;
    }
    for (int position = warp; position <= committed + deep; position += WARPS) {
        const int index = chain || position < committed ? position : committed + path[position - committed];
        const size_t place = (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
        const size_t source = (place * KV + head / GROUP) * HEAD;
        float score = 0.0f, value[OWN];
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int d = lane + 32 * i;
            value[i] = d < HEAD ? v[source + d] : 0.0f;
            if (d < HEAD) score = __fmaf_rn(query[i], k[source + d], score);
        }
        score = warp_sum(score);
        const float most = fmaxf(top, score), rescale = expf(top - most), weight = expf(score - most);
        sum = __fmaf_rn(sum, rescale, weight);
#pragma unroll
        for (int i = 0; i < OWN; ++i) o[i] = __fmaf_rn(weight, value[i], __fmul_rn(o[i], rescale));
        top = most;
    }
#pragma unroll
    for (int i = 0; i < OWN; ++i) values[warp][lane + 32 * i] = o[i];
    if (lane == 0) tops[warp] = top, totals[warp] = sum;
    __syncthreads();
    if (threadIdx.x >= HEAD) return;
    float most = nothing;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) most = fmaxf(most, tops[w]);
    float x = 0.0f;
    sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; ++w) {
        const float2 part = weighed(tops[w], totals[w], most);
        x = __fmaf_rn(values[w][threadIdx.x], part.x, x);
        sum = __fadd_rn(sum, part.y);
    }
    x = __fdiv_rn(x, sum);
    if (GATED) x = mul_sigmoid_rn(x, gate[(2 * at + 1) * HEAD + threadIdx.x]);
    out[at * HEAD + threadIdx.x] = half_saturated(x);
}
