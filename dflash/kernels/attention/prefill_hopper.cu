// Attention of prefill rows on Hopper: out = softmax(q k^T / sqrt(HEAD_DIM)) v, times sigmoid(gate) if GATED.
//
// A block handles one work item, see prefill_scheduler.cuh. Grid: at least (query tiles of all sequences) * KV_HEADS. Block,
// roles and shared memory: mainloop_sm90.cuh. Macros: those of mainloop_sm90.cuh. Compute-bound: 4 * HEAD_DIM operations for
// each query and position.
#define TREE_MASK 0
#include "../gpu/include/pdl.cuh"
#include "mainloop_sm90.cuh"
#include "prefill_scheduler.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
               const int* counts, const int* first, const int* length, const int* pages, int max_pages,
               const float* gate, unsigned short* out) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024;
    const u32 full = smem_address(barriers);
    Pipeline pipeline = {query_tile + QUERY_TILE_BYTES, full, full + 8 * STAGES, 0, 0};
    if (threadIdx.x == 0) init_pipeline(pipeline);
    KvRange kv;
    QueryTile queries;
    const bool found = find(blockIdx.x, kv, queries, counts[1], first, length, pages, max_pages);
    __syncthreads();  // the pipeline's barriers are initialised
    wait_on_dependent_grids();
    if (!found) return;
    if (threadIdx.x >= 2 * TILE_Q) {
        setmaxnreg_producer();
        if (threadIdx.x > 2 * TILE_Q) return;
        for (int i = 0; i <= kv.end; ++i) {
            if (i < kv.end) copy_tile(pipeline, k, kv, i);
            if (i > 0) copy_tile(pipeline, v, kv, i - 1);
        }
        return;
    }
    setmaxnreg_consumer();
    if (threadIdx.x / 128 * 64 >= queries.n) {
        skip(pipeline, kv);
        return;
    }
    const u32 own = query_tile + threadIdx.x / 128 * WARPGROUP_TILE;
    store_queries(own, q, queries);
    warpgroup_sync();  // all queries of the warpgroup are stored
    Softmax acc;
    mainloop(pipeline, kv, mask_of(kv, queries), own, acc, CachedRows{kv.written});
    epilogue(own, queries, acc, gate, out);
}
