// Attention of pending rows on Hopper, up to what `combine` does: pending.cuh says which, flash.cuh how.
//
// Blocks take items in turn. Grid: any, one block a processor; block and shared memory: ring.cuh.
// Bytes: 4 * KV * HEAD for each position, and for each query 4 * HEAD a part.
#define TREES 1
#include "../gpu/include/pdl.cuh"
#include "ring.cuh"
#include "pending.cuh"

// Copy the text of all items of the block; what was committed before this pass ahead of the kernels in front.
__device__ __forceinline__ void copy_texts(Ring ring, const TensorMap& k, const TensorMap& v, const Batch& batch,
                                           const int* pages, int max_pages) {
    Item item;
    item.sequence = item.before = 0;
    bool waited = false;
    for (int n = blockIdx.x; find(n, item, batch, pages, max_pages); n += gridDim.x) {
        const Text& text = item.text;
        for (int i = text.begin; i <= text.end; ++i) {
            if (!waited && i < text.end && (i + 1) * KEYS > text.committed) {
                wait_on_dependent_grids();
                waited = true;
            }
            if (i < text.end) copy_tile(ring, k, text, i);
            if (i > text.begin) copy_tile(ring, v, text, i - 1);
        }
    }
    if (!waited) wait_on_dependent_grids();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attend_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
              const int* counts, const int* first, const int* parent, const int* depth, const int* length, const int* pages,
              int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * SLOTS];
    __shared__ Batch batch;
    __shared__ Item items[GROUPS];
    __shared__ int limits[GROUPS][MOST_ROWS];
    __shared__ u64 above[GROUPS][MOST_ROWS];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024;
    const u32 full = smem_address(barriers);
    Ring ring = {query_tile + QUERY_TILE, full, full + 8 * SLOTS, 0, 0};
    if (threadIdx.x == PENDING) begin_ring(ring);
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    __syncthreads();
    if (threadIdx.x >= 2 * QUERIES) {
        take_copiers_registers();
        if (threadIdx.x == 2 * QUERIES) copy_texts(ring, k, v, batch, pages, max_pages);
        return;
    }
    take_multipliers_registers();
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const u32 own = query_tile + group * GROUP_TILE;
    Item& item = items[group];
    if (thread == 0) item.sequence = item.before = 0;
    bool waited = false;
    for (int n = blockIdx.x;; n += gridDim.x) {
        warpgroup_sync();
        if (thread == 0) find(n, item, batch, pages, max_pages);
        warpgroup_sync();
        if (item.queries.n == 0) break;
        if (thread < item.rows) look(item, thread, batch, limits[group], above[group]);
        if (!waited) wait_on_dependent_grids();
        waited = true;
        if (group * 64 >= item.queries.n) {
            pass(ring, item.text);
            continue;
        }
        store_queries(own, q, item.queries);
        warpgroup_sync();
        const Sight sight = {item.text.committed, item.text.committed, 0, limits[group], above[group]};
        Sums sums;
        read(ring, item.text, sight, own, sums);
        leave(item, sums, partial, stats);
    }
    if (!waited) wait_on_dependent_grids();
}
