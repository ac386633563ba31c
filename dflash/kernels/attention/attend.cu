// Attention of pending rows, up to what `combine` does: pending.cuh says which, flash.cuh how.
//
// Blocks take items in turn. Grid: any, one block a processor; block and shared memory: together.cuh.
// Bytes: 4 * KV * HEAD for each position, and for each query 4 * HEAD a part.
#define TREES 1
#include "../gpu/include/pdl.cuh"
#include "together.cuh"
#include "pending.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attend(const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* counts, const int* first,
       const int* parent, const int* depth, const int* length, const int* pages, int max_pages, int max_rows,
       int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ Batch batch;
    __shared__ Item item;
    __shared__ int limits[MOST_ROWS];
    __shared__ u64 above[MOST_ROWS];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, slots = query_tile + QUERY_TILE;
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    if (threadIdx.x == 0) item.sequence = item.before = 0;
    wait_on_dependent_grids();
    for (int n = blockIdx.x;; n += gridDim.x) {
        __syncthreads();
        if (threadIdx.x == 0) find(n, item, batch, pages, max_pages);
        __syncthreads();
        if (item.queries.n == 0) break;
        for (int i = 0; i < SLOTS; ++i) fetch(slots, k, v, item.text, i);
        if (threadIdx.x < item.rows) look(item, threadIdx.x, batch, limits, above);
        store_queries(query_tile, q, item.queries);
        const Sight sight = {item.text.committed, item.text.committed, 0, limits, above};
        const bool idle = threadIdx.x / 32 * 16 >= item.queries.n;
        Sums sums;
        read(k, v, item.text, sight, idle, query_tile, slots, sums);
        leave(item, sums, partial, stats);
    }
}
