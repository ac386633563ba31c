// Attention of prefill rows: out = softmax(q k^T / sqrt(HEAD_DIM)) v, times sigmoid(gate) if GATED.
//
// A block handles one work item, see prefill_scheduler.cuh. Grid: at least (query tiles of all sequences) * KV_HEADS. Block,
// roles and shared memory: mainloop.cuh. Macros: those of mainloop.cuh. Compute-bound: 4 * HEAD_DIM operations for each
// query and position.
#define TREE_MASK 0
#include "../gpu/include/activation.cuh"
#include "../gpu/include/pdl.cuh"
#include "mainloop.cuh"
#include "prefill_scheduler.cuh"

// Epilogue: write the outputs of one of a thread's two queries.
__device__ __forceinline__ void epilogue(const Softmax& acc, int h, size_t at, const float* gate, u16* out) {
    const int d = threadIdx.x % 4 * 2;
    float2 g[HEAD_DIM / 8];
    UNROLL for (int n = 0; n < HEAD_DIM / 8; ++n) {
        if (GATED) g[n] = __ldg((const float2*)(gate + (2 * at + 1) * HEAD_DIM + 8 * n + d));
    }
    UNROLL for (int n = 0; n < HEAD_DIM / 8; ++n) {
        float2 x = make_float2(__fdiv_rn(acc.o[n][2 * h], acc.sum[h]), __fdiv_rn(acc.o[n][2 * h + 1], acc.sum[h]));
        if (GATED) x = make_float2(mul_sigmoid_rn(x.x, g[n].x), mul_sigmoid_rn(x.y, g[n].y));
        *(u32*)(out + at * HEAD_DIM + 8 * n + d) = half_saturated(x.x) | (u32)half_saturated(x.y) << 16;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill(const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* counts, const int* first,
        const int* length, const int* pages, int max_pages, const float* gate, unsigned short* out) {
    extern __shared__ u8 memory[];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, stages = query_tile + QUERY_TILE_BYTES;
    KvRange kv;
    QueryTile queries;
    const bool found = find(blockIdx.x, kv, queries, counts[1], first, length, pages, max_pages);
    wait_on_dependent_grids();
    if (!found) return;
    for (int n = 0; n < STAGES; ++n) fetch(stages, k, v, kv, n);
    store_queries(query_tile, q, queries);
    Softmax acc;
    mainloop(k, v, kv, mask_of(kv, queries), threadIdx.x / 32 * 16 >= queries.n, query_tile, stages, acc);
    UNROLL for (int h = 0; h < 2; ++h) {
        if (query_index(h) < queries.n) epilogue(acc, h, queries.at(query_index(h)), gate, out);
    }
}
