// Norm and rotate queries and keys, and write keys and values to the cache: x = x / sqrt(mean(x^2) + eps) * w, then
// x[j], x[j + PAIRS] = x[j] cos - x[j + PAIRS] sin, x[j + PAIRS] cos + x[j] sin.
//
// A warp takes one head of a row: of the queries, the keys or the values. Grid (heads of all three / WARPS, rows), block
// 32 * WARPS. Macros: HEAD, HEADS, KV, the shape; PAIRS; GATED, whether gates follow each query; HALF, whether queries and
// cache are halves. Bytes: those of the projections, and what is written.
#include "rotate.cuh"

#if !defined(HEADS) || !defined(KV) || !defined(GATED)
#error "HEADS, KV and GATED must be defined"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rotate(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
       const float* cosines, const float* sines, const int* counts, const int* first, const int* sequence, const int* length,
       const int* pages, int max_pages, float eps, unsigned char* q, unsigned char* k, unsigned char* v) {
    __shared__ float4 turned[WARPS][OWN];
    launch_dependent_grids();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const bool is_query = head < HEADS, is_key = !is_query && head < HEADS + KV;
    const bool works = row < counts[0] && head < HEADS + 2 * KV;
    const int h = is_query ? head : is_key ? head - HEADS : head - HEADS - KV;
    const float* gains = is_query ? q_norm : k_norm;
    const Gains own(gains, lane);
    Kept* to = 0;
    if (works && is_query) {
        to = (Kept*)q + ((size_t)row * HEADS + h) * HEAD;
    } else if (works) {
        to = (Kept*)(is_key ? k : v) + (place_of(row, first, sequence, length, pages, max_pages) * KV + h) * HEAD;
    }
    wait_on_dependent_grids();
    if (!works) return;
    const float4* from = (const float4*)(is_query ? query + ((size_t)row * HEADS + h) * (GATED ? 2 * HEAD : HEAD)
                                                  : (is_key ? key : value) + ((size_t)row * KV + h) * HEAD);
    const size_t angles = (size_t)row * PAIRS;
    write_head(from, to, own, is_query || is_key, cosines + angles, sines + angles, eps, turned[warp], lane);
}
