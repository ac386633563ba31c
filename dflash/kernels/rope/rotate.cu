// Norm and rotate queries and keys, and write keys and values to the cache: x = x / sqrt(mean(x^2) + eps) * w, then
// x[j], x[j + PAIRS] = x[j] cos - x[j + PAIRS] sin, x[j + PAIRS] cos + x[j] sin.
//
// A warp takes one head of a row: of the queries, the keys or the values. Grid (heads of all three / WARPS, rows), block
// 32 * WARPS. Macros: HEAD, HEADS, KV, the shape; PAIRS; GATED, whether gates follow each query; HALF, whether queries and
// cache are halves. Bytes: those of the projections, and what is written.
#include "../formats/half.cuh"
#include "../launch.cuh"

#if !defined(HEAD) || !defined(HEADS) || !defined(KV) || !defined(PAIRS) || !defined(GATED) || !defined(HALF)
#error "HEAD, HEADS, KV, PAIRS, GATED and HALF must be defined"
#endif
static_assert(2 * PAIRS <= HEAD && HEAD % 16 == 0, "pairs of a head of 16, 32, ... numbers");

constexpr int PAGE = 256, WARPS = 4, OWN = HEAD / 4, EACH = (OWN + 31) / 32;  // fours of numbers, of a head and a lane
constexpr int TURNS = (PAIRS + 31) / 32;

#if HALF
typedef unsigned short Kept;
__device__ __forceinline__ void keep(u16* to, float4 x) {
    *(uint2*)to = make_uint2(half_saturated(x.x) | (u32)half_saturated(x.y) << 16,
                             half_saturated(x.z) | (u32)half_saturated(x.w) << 16);
}
#else
typedef float Kept;
__device__ __forceinline__ void keep(float* to, float4 x) { *(float4*)to = x; }
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rotate(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
       const float* cosines, const float* sines, const int* counts, const int* first, const int* sequence, const int* length,
       const int* pages, int max_pages, float eps, unsigned char* q, unsigned char* k, unsigned char* v) {
    __shared__ float4 turned[WARPS][OWN];
    dependents_may_launch();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const bool is_query = head < HEADS, is_key = !is_query && head < HEADS + KV;
    const bool works = row < counts[0] && head < HEADS + 2 * KV;
    const int h = is_query ? head : is_key ? head - HEADS : head - HEADS - KV;
    const float* gains = is_query ? q_norm : k_norm;
    float4 x[EACH], gain[EACH];
    Kept* to = 0;
    if (works) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i < OWN) gain[i] = ((const float4*)gains)[lane + 32 * i];
        }
        if (is_query) {
            to = (Kept*)q + ((size_t)row * HEADS + h) * HEAD;
        } else {
            const int s = sequence[row], index = length[s] + row - first[s];
            const size_t place = (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
            to = (Kept*)(is_key ? k : v) + (place * KV + h) * HEAD;
        }
    }
    wait_for_inputs();
    if (!works) return;
    const float4* from = (const float4*)(is_query ? query + ((size_t)row * HEADS + h) * (GATED ? 2 * HEAD : HEAD)
                                                  : (is_key ? key : value) + ((size_t)row * KV + h) * HEAD);
    const bool turns = is_query || is_key;
    float squares = 0.0f, c[TURNS], s[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const bool own = turns && lane + 32 * i < PAIRS;
        c[i] = own ? cosines[(size_t)row * PAIRS + lane + 32 * i] : 0.0f;
        s[i] = own ? sines[(size_t)row * PAIRS + lane + 32 * i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (lane + 32 * i < OWN) x[i] = from[lane + 32 * i];
        squares = __fmaf_rn(x[i].x, x[i].x, __fmaf_rn(x[i].y, x[i].y, squares));
        squares = __fmaf_rn(x[i].z, x[i].z, __fmaf_rn(x[i].w, x[i].w, squares));
    }
    if (turns) {
#pragma unroll
        for (int i = 16; i; i /= 2) squares = __fadd_rn(squares, __shfl_xor_sync(~0u, squares, i));
        const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)HEAD), eps)));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i >= OWN) continue;
            x[i].x = __fmul_rn(__fmul_rn(x[i].x, scale), gain[i].x), x[i].y = __fmul_rn(__fmul_rn(x[i].y, scale), gain[i].y);
            x[i].z = __fmul_rn(__fmul_rn(x[i].z, scale), gain[i].z), x[i].w = __fmul_rn(__fmul_rn(x[i].w, scale), gain[i].w);
            turned[warp][lane + 32 * i] = x[i];
        }
        __syncwarp();
        float* own = (float*)turned[warp];
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            const int j = lane + 32 * i;
            if (j >= PAIRS) continue;
            const float left = own[j], right = own[j + PAIRS];
            own[j] = __fsub_rn(__fmul_rn(left, c[i]), __fmul_rn(right, s[i]));
            own[j + PAIRS] = __fadd_rn(__fmul_rn(right, c[i]), __fmul_rn(left, s[i]));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i < OWN) x[i] = turned[warp][lane + 32 * i];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (lane + 32 * i < OWN) keep(to + 4 * (lane + 32 * i), x[i]);
    }
}
