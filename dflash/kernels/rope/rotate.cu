// Norm and rotate queries and keys, and append keys and values to the cache; rotate.cuh has the formula.
//
// A warp handles one head of a row: a query, key or value head. Grid ((QUERY_HEADS + 2 * KV_HEADS) / WARPS rounded up,
// rows), block 32 * WARPS, shared memory: HEAD_DIM floats a warp (static).
// Macros: those of rotate.cuh; QUERY_HEADS; KV_HEADS; GATED, 1 if the projection holds a gate of HEAD_DIM elements after
// each query head.
// Bytes: each projected element is read once as float32 and stored once; gates are not touched.
#include "rotate.cuh"

#if !defined(QUERY_HEADS) || !defined(KV_HEADS) || !defined(GATED)
#error "QUERY_HEADS, KV_HEADS and GATED must be defined"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rotate(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
       const float* cosines, const float* sines, const int* counts, const int* first, const int* sequence,
       const int* length, const int* pages, int max_pages, float eps, unsigned char* q, unsigned char* k,
       unsigned char* v) {
    __shared__ float4 rotated[WARPS][VECTORS];
    launch_dependent_grids();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const bool is_query = head < QUERY_HEADS, is_key = !is_query && head < QUERY_HEADS + KV_HEADS;
    const bool active = row < counts[0] && head < QUERY_HEADS + 2 * KV_HEADS;
    const int h = is_query ? head : is_key ? head - QUERY_HEADS : head - QUERY_HEADS - KV_HEADS;
    const float* gains = is_query ? q_norm : k_norm;
    const Gains norm_weights(gains, lane);
    Stored* target = 0;
    if (active && is_query) {
        target = (Stored*)q + ((size_t)row * QUERY_HEADS + h) * HEAD_DIM;
    } else if (active) {
        target = (Stored*)(is_key ? k : v) +
                 (cache_row(row, first, sequence, length, pages, max_pages) * KV_HEADS + h) * HEAD_DIM;
    }
    wait_on_dependent_grids();
    if (!active) return;
    const float4* vectors =
        (const float4*)(is_query ? query + ((size_t)row * QUERY_HEADS + h) * (GATED ? 2 * HEAD_DIM : HEAD_DIM)
                                 : (is_key ? key : value) + ((size_t)row * KV_HEADS + h) * HEAD_DIM);
    const size_t angles = (size_t)row * ROTARY_PAIRS;
    write_head(vectors, target, norm_weights, is_query || is_key, cosines + angles, sines + angles, eps, rotated[warp],
               lane);
}
