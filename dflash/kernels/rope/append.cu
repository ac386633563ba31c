// Store keys, normed and rotated, and values of all layers of a draft model in their caches, as rotate.cu does for one layer.
//
// Grid (heads of keys and values / WARPS, rows, layers), block 32 * WARPS. Macros: those of rotate.cuh; KV_HEADS.
// `where`: for the keys and the values of each layer the address of row 0, and the elements between rows. The caches of layers
// follow each other, `apart` elements from one to the next. Bytes: those of the projections, and half of them stored.
#include "rotate.cuh"

#ifndef KV_HEADS
#error "KV_HEADS must be defined"
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS)
append(const unsigned long long* where, const float* gains, const float* cosines, const float* sines, const int* counts,
       const int* first, const int* sequence, const int* length, const int* pages, int max_pages, float eps,
       unsigned long long apart, unsigned char* k, unsigned char* v) {
    __shared__ float4 rotated[WARPS][VECTORS];
    launch_dependent_grids();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x * WARPS + warp, row = blockIdx.y;
    const int layer = blockIdx.z, h = head % KV_HEADS;
    const bool works = row < counts[0] && head < 2 * KV_HEADS, is_key = head < KV_HEADS;
    const Gains own(gains + (size_t)layer * HEAD_DIM, lane);
    Stored* to = 0;
    const float* from = 0;
    if (works) {
        const unsigned long long* source = where + 2 * (2 * layer + !is_key);
        from = (const float*)source[0] + (size_t)row * source[1] + h * HEAD_DIM;
        to = (Stored*)(is_key ? k : v) + layer * apart;
        to += (cache_row(row, first, sequence, length, pages, max_pages) * KV_HEADS + h) * HEAD_DIM;
    }
    wait_on_dependent_grids();
    if (!works) return;
    const size_t angles = (size_t)row * ROTARY_PAIRS;
    write_head((const float4*)from, to, own, is_key, cosines + angles, sines + angles, eps, rotated[warp], lane);
}
