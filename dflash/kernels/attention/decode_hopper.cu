// Attention of pending rows (decode) on Hopper: partial results of each split (split-KV); `combine` follows.
// online_softmax.cuh has the formula.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block, roles
// and shared memory: mainloop_sm90.cuh. Macros: those of mainloop_sm90.cuh; MAX_SPLITS, capacity of splits of a row.
// Bytes: 4 * KV_HEADS * HEAD_DIM for each position, and 4 * HEAD_DIM for each query and split.
#define TREE_MASK 1
#include "../gpu/include/pdl.cuh"
#include "mainloop_sm90.cuh"
#include "store_item.cuh"

// Producer: copy the tiles of all items of the block. Tiles with accepted positions only need not wait for earlier kernels.
__device__ __forceinline__ void copy_items(Pipeline pipeline, const TensorMap& k, const TensorMap& v, const Batch& batch,
                                           const int* pages, int max_pages) {
    Item item;
    item.sequence = item.before = 0;
    bool waited = false;
    for (int n = blockIdx.x; find(n, item, batch, pages, max_pages); n += gridDim.x) {
        const KvRange& kv = item.kv;
        for (int i = kv.begin; i <= kv.end; ++i) {
            if (!waited && i < kv.end && (i + 1) * TILE_KV > kv.committed) {
                wait_on_dependent_grids();
                waited = true;
            }
            if (i < kv.end) copy_tile(pipeline, k, kv, i);
            if (i > kv.begin) copy_tile(pipeline, v, kv, i - 1);
        }
    }
    if (!waited) wait_on_dependent_grids();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
              const int* counts, const int* first, const int* parent, const int* depth, const int* length,
              const int* pages, int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    __shared__ Batch batch;
    __shared__ Item items[WARPGROUPS];
    __shared__ int limits[WARPGROUPS][MAX_ROWS];
    __shared__ u64 above[WARPGROUPS][MAX_ROWS];
    if (threadIdx.x == 2 * TILE_Q) prefetch_map(k), prefetch_map(v);
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024;
    const u32 full = smem_address(barriers);
    Pipeline pipeline = {query_tile + QUERY_TILE_BYTES, full, full + 8 * STAGES, 0, 0};
    if (threadIdx.x == PENDING) init_pipeline(pipeline);
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    __syncthreads();  // barriers and batch are ready
    if (threadIdx.x >= 2 * TILE_Q) {
        setmaxnreg_producer();
        if (threadIdx.x == 2 * TILE_Q) copy_items(pipeline, k, v, batch, pages, max_pages);
        return;
    }
    setmaxnreg_consumer();
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    const u32 own = query_tile + group * WARPGROUP_TILE;
    Item& item = items[group];
    if (thread == 0) item.sequence = item.before = 0;
    bool waited = false;
    for (int n = blockIdx.x;; n += gridDim.x) {
        warpgroup_sync();  // the warpgroup no longer reads its previous item
        if (thread == 0) find(n, item, batch, pages, max_pages);
        warpgroup_sync();  // the item is stored
        if (item.queries.n == 0) break;
        if (thread < item.rows) read_mask(item, thread, batch, limits[group], above[group]);
        if (!waited) wait_on_dependent_grids();
        waited = true;
        if (group * 64 >= item.queries.n) {
            skip(pipeline, item.kv);
            continue;
        }
        store_queries(own, q, item.queries);
        warpgroup_sync();  // queries and masks are stored before any warp reads them
        launch_dependent_grids();  // earlier is slower
        const Mask mask = {item.kv.committed, item.kv.committed, 0, limits[group], above[group]};
        Softmax acc;
        mainloop(pipeline, item.kv, mask, own, acc, CachedRows{item.kv.written});
        store_partial(item, acc, partial, stats);
    }
    if (!waited) wait_on_dependent_grids();
}
