// Attention of pending rows (decode): partial results of each split (split-KV); `combine` follows. online_softmax.cuh has
// the formula.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block, roles
// and shared memory: mainloop.cuh. Macros: those of mainloop.cuh; MAX_SPLITS, capacity of splits of a row.
// Bytes: 4 * KV_HEADS * HEAD_DIM for each position, and 4 * HEAD_DIM for each query and split.
#define TREE_MASK 1
#include "../gpu/include/pdl.cuh"
#include "mainloop.cuh"
#include "store_item.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode(const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* counts, const int* first,
       const int* parent, const int* depth, const int* length, const int* pages, int max_pages, int max_rows,
       int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ Batch batch;
    __shared__ Item item;
    __shared__ int limits[MAX_ROWS];
    __shared__ u64 above[MAX_ROWS];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, stages = query_tile + QUERY_TILE_BYTES;
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    if (threadIdx.x == 0) item.sequence = item.before = 0;
    wait_on_dependent_grids();
    for (int n = blockIdx.x;; n += gridDim.x) {
        __syncthreads();  // the previous item and its masks are no longer read
        if (threadIdx.x == 0) find(n, item, batch, pages, max_pages);
        __syncthreads();  // the item is stored
        if (item.queries.n == 0) break;
        for (int i = 0; i < STAGES; ++i) fetch(stages, k, v, item.kv, i);
        if (threadIdx.x < item.rows) read_mask(item, threadIdx.x, batch, limits, above);
        store_queries(query_tile, q, item.queries);
        const Mask mask = {item.kv.committed, item.kv.committed, 0, limits, above};
        const bool idle = threadIdx.x / 32 * 16 >= item.queries.n;
        Softmax acc;
        mainloop(k, v, item.kv, mask, idle, query_tile, stages, acc);
        store_partial(item, acc, partial, stats);
    }
}
