// Norm and rotate queries and keys, and append keys and values to the cache; head.cuh has the formula.
//
// A warp handles one head of a row: a query, key or value head. Grid ((QUERY_HEADS + 2 * KV_HEADS) / WARPS rounded up,
// rows), block 32 * WARPS, shared memory: HEAD_DIM floats a warp (static).
// Macros: those of head.cuh; QUERY_HEADS; KV_HEADS; GATED, 1 if the projection holds a gate of HEAD_DIM elements after
// each query head; KEY_BITS and VALUE_BITS, 8 or 4 to store keys or values as q8_0 or q4_0 (quantize.cuh), else as queries; of
// keys in 4 bits, queries and keys are mixed (mix.cuh); QUERIES_ONLY, 1 in a layer without keys and values, and VALUE_NORM, 1 if
// values have a norm without a gain: both 0 unless defined. `bias` has HEAD_DIM elements for each query, key and value head.
// Bytes: each projected element is read once as float32 and stored once; gates are not touched.
#include "rotate.cuh"

#if !defined(QUERY_HEADS) || !defined(KV_HEADS) || !defined(GATED) || !defined(KEY_BITS) || !defined(VALUE_BITS)
#error "QUERY_HEADS, KV_HEADS, GATED, KEY_BITS and VALUE_BITS must be defined"
#endif
static_assert(KEY_BITS == VALUE_BITS || (KEY_BITS <= 8 && VALUE_BITS <= 8), "types that differ are quantized");
#ifndef QUERIES_ONLY
#define QUERIES_ONLY 0
#endif
#ifndef VALUE_NORM
#define VALUE_NORM 0
#endif
#if KEY_BITS <= 8
#include "quantize.cuh"
#endif
#if KEY_BITS == 4
#include "mix.cuh"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
rotate(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
       const float* cosines, const float* sines, const int* counts, const int* first, const int* sequence,
       const int* length, const int* pages, int max_pages, float eps, unsigned char* q, unsigned char* k,
       unsigned char* v, const float* bias) {
    static_assert(!BIASED || !(GATED || VALUE_NORM), "gates and normed values have no bias");
    __shared__ float4 rotated[WARPS][VECTORS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const bool is_query = head < QUERY_HEADS, is_key = !is_query && head < QUERY_HEADS + KV_HEADS;
    const bool active = row < counts[0] && head < QUERY_HEADS + (QUERIES_ONLY ? 0 : 2 * KV_HEADS);
    const int h = is_query ? head : is_key ? head - QUERY_HEADS : head - QUERY_HEADS - KV_HEADS;
    const float* gains = is_query || QUERIES_ONLY ? q_norm : k_norm;
    const Gains norm_weights(gains, lane);
    const Bias own_bias(bias + (active ? head : 0) * HEAD_DIM, lane);
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
        load_head(x, vectors, own_bias, norm_weights, is_query || is_key, cosines + angles, sines + angles, eps, rotated[warp],
                  lane);
    }
#if KEY_BITS == 4
    if (is_query || is_key) mix(x, lane);
#endif
#if KEY_BITS <= 8
    if (!is_query) {
        if (KEY_BITS == VALUE_BITS || is_key) store_head_quantized<KEY_BITS>(is_key ? k : v, target, x, lane);
        else store_head_quantized<VALUE_BITS>(v, target, x, lane);
        return;
    }
#endif
    store_head((Stored*)(is_query ? q : is_key ? k : v) + target * HEAD_DIM, x, lane);
}
