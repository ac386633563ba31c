// Attention of text on Hopper: prompt.cuh says which tiles of queries there are, flash.cuh what they do.
//
// Grid: at least (tiles of queries of all sequences) * KV; block and shared memory: ring.cuh.
// Bound by products: 4 * HEAD for each pair of a query and a position.
#define TREES 0
#include "../gpu/include/pdl.cuh"
#include "ring.cuh"
#include "prompt.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
               const int* counts, const int* first, const int* length, const int* pages, int max_pages, const float* gate,
               unsigned short* out) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * SLOTS];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024;
    const u32 full = smem_address(barriers);
    Ring ring = {query_tile + QUERY_TILE, full, full + 8 * SLOTS, 0, 0};
    if (threadIdx.x == 0) begin_ring(ring);
    Text text;
    Queries queries;
    const bool found = find(blockIdx.x, text, queries, counts[1], first, length, pages, max_pages);
    __syncthreads();
    wait_on_dependent_grids();
    if (!found) return;
    if (threadIdx.x >= 2 * QUERIES) {
        take_copiers_registers();
        if (threadIdx.x > 2 * QUERIES) return;
        for (int i = 0; i <= text.end; ++i) {
            if (i < text.end) copy_tile(ring, k, text, i);
            if (i > 0) copy_tile(ring, v, text, i - 1);
        }
        return;
    }
    take_multipliers_registers();
    if (threadIdx.x / 128 * 64 >= queries.n) {
        pass(ring, text);
        return;
    }
    const u32 own = query_tile + threadIdx.x / 128 * GROUP_TILE;
    store_queries(own, q, queries);
    warpgroup_sync();
    Sums sums;
    read(ring, text, sight_of(text, queries), own, sums);
    finish_group(own, queries, sums, gate, out);
}
