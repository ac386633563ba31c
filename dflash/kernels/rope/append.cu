// Append the keys and values of all layers of a draft model to their caches. Keys are normed and rotated as in rotate.cu;
// values are stored unchanged.
//
// A warp handles one key or value head of a row. Grid (2 * KV_HEADS / WARPS rounded up, rows, layers), block 32 * WARPS,
// shared memory: HEAD_DIM floats a warp (static). Macros: those of head.cuh; KV_HEADS.
// `where`: for the keys and for the values of each layer the address of row 0, and the elements from one row to the next.
// `apart`: elements from the cache of one layer to that of the next.
// Bytes: each projected key and value is read once as float32 and stored once.
#include "rotate.cuh"

#ifndef KV_HEADS
#error "KV_HEADS must be defined"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
append(const unsigned long long* where, const float* gains, const float* cosines, const float* sines,
       const int* counts, const int* first, const int* sequence, const int* length, const int* pages, int max_pages,
       float eps, unsigned long long apart, unsigned char* k, unsigned char* v) {
    __shared__ float4 rotated[WARPS][VECTORS];
    launch_dependent_grids();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const int layer = blockIdx.z, h = head % KV_HEADS;
    const bool active = row < counts[0] && head < 2 * KV_HEADS, is_key = head < KV_HEADS;
    const Gains norm_weights(gains + (size_t)layer * HEAD_DIM, lane);
    Stored* target = 0;
    const float* vectors = 0;
    if (active) {
        const unsigned long long* own = where + 2 * (2 * layer + !is_key);
        vectors = (const float*)own[0] + (size_t)row * own[1] + h * HEAD_DIM;
        target = (Stored*)(is_key ? k : v) + layer * apart;
        target += (cache_row(row, first, sequence, length, pages, max_pages) * KV_HEADS + h) * HEAD_DIM;
    }
    wait_on_dependent_grids();
    if (!active) return;
    const size_t angles = (size_t)row * ROTARY_PAIRS;
    float4 x[VECTORS_PER_LANE];
    load_head(x, (const float4*)vectors, Bias(0, lane), norm_weights, is_key, cosines + angles, sines + angles, eps,
              rotated[warp], lane);
    store_head(target, x, lane);
}
