// Norm and rotate queries and keys, and append keys and values to the cache; rotate.cuh has the formula.
//
// A warp handles one head of a row: a query, key or value head. Grid ((QUERY_HEADS + 2 * KV_HEADS) / WARPS rounded up,
// rows), block 32 * WARPS, shared memory: HEAD_DIM floats a warp (static).
// Macros: those of rotate.cuh; QUERY_HEADS; KV_HEADS; GATED, 1 if the projection holds a gate of HEAD_DIM elements after
// each query head; KV_Q8_0, 1 to store keys and values as q8_0 (quantize.cuh); QUERIES_ONLY, 1 in a layer without keys and
// values, and VALUE_NORM, 1 if values have a norm without a gain: both 0 unless defined.
// Bytes: each projected element is read once as float32 and stored once; gates are not touched.
#include "rotate.cuh"

#if !defined(QUERY_HEADS) || !defined(KV_HEADS) || !defined(GATED) || !defined(KV_Q8_0)
#error "QUERY_HEADS, KV_HEADS, GATED and KV_Q8_0 must be defined"
#endif
#ifndef QUERIES_ONLY
#define QUERIES_ONLY 0
#endif
#ifndef VALUE_NORM
#define VALUE_NORM 0
#endif
#if KV_Q8_0
#include "quantize.cuh"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rotate(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
       const float* cosines, const float* sines, const int* counts, const int* first, const int* sequence,
       const int* length, const int* pages, int max_pages, float eps, unsigned char* q, unsigned char* k,
       unsigned char* v) {
    __shared__ float4 rotated[WARPS][VECTORS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const bool is_query = head < QUERY_HEADS, is_key = !is_query && head < QUERY_HEADS + KV_HEADS;
    const bool active = row < counts[0] && head < QUERY_HEADS + (QUERIES_ONLY ? 0 : 2 * KV_HEADS);
    const int h = is_query ? head : is_key ? head - QUERY_HEADS : head - QUERY_HEADS - KV_HEADS;
    const float* gains = is_query || QUERIES_ONLY ? q_norm : k_norm;
    const Gains norm_weights(gains, lane);
    size_t target = 0;  // head of the queries or of the cache
    if (active) {
        target = is_query ? (size_t)row * QUERY_HEADS + h
                          : cache_row(row, first, sequence, length, pages, max_pages) * KV_HEADS + h;
    }
    wait_on_dependent_grids();
    launch_dependent_grids();
    if (!active) return;
    const float4* vectors =
        (const float4*)(is_query ? query + ((size_t)row * QUERY_HEADS + h) * (GATED ? 2 * HEAD_DIM : HEAD_DIM)
                                 : (is_key ? key : value) + ((size_t)row * KV_HEADS + h) * HEAD_DIM);
    const size_t angles = (size_t)row * ROTARY_PAIRS;
    float4 x[VECTORS_PER_LANE];
    if (VALUE_NORM && !is_query && !is_key) {
        load_normed(x, vectors, eps, lane);
    } else {
        load_head(x, vectors, norm_weights, is_query || is_key, cosines + angles, sines + angles, eps, rotated[warp], lane);
    }
#if KV_Q8_0
    if (!is_query) {
        store_head_q8_0((is_key ? k : v) + target * HEAD_BYTES, x, lane);
        return;
    }
#endif
    store_head((Stored*)(is_query ? q : is_key ? k : v) + target * HEAD_DIM, x, lane);
}
