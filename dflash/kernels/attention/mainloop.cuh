// Mainloop of attention: a query tile attends to the keys and values of its context. Roles: all warps copy tiles with
// cp.async and multiply them, each warp with its 16 queries.
//
// Block 2 * TILE_Q, shared memory QUERY_TILE_BYTES + STAGES * TILE_BYTES + 1024. Macros: those of online_softmax.cuh;
// STAGES, tiles of keys and values in shared memory.
#pragma once
#include "../gpu/include/cp_async.cuh"
#include "mma.cuh"
#include "online_softmax.cuh"

#ifndef STAGES
#error "STAGES must be defined"
#endif
static_assert(STAGES >= 4, "two tiles are read while two are copied");

constexpr int THREADS = 2 * TILE_Q;

// Start to copy tile `i` of keys or values to a stage. Positions that are not in the cache become zeros.
__device__ __forceinline__ void fetch_tile(u32 stage, const u16* cache, const KvRange& kv, int i) {
    const int position = i * TILE_KV;
    const size_t page_row = (size_t)__ldg(kv.pages + position / PAGE) * PAGE + position % PAGE;
    const u16* from = cache + (page_row * KV_HEADS + kv.head) * HEAD_DIM;
#pragma unroll 2
    for (int n = threadIdx.x; n < TILE_KV * LINES; n += THREADS) {
        const int key = n / LINES, line = n % LINES;
        cp_async_16_zfill(stage + swizzled<TILE_KV>(key, line), from + (size_t)key * (KV_HEADS * HEAD_DIM) + line * 8,
                          position + key < kv.written);
    }
}

// Start to copy tile n of the order K0 K1 V0 K2 V1 ... to stage n % STAGES, with `fetch_tile` for the source's type.
template <class Cache, class Source>
__device__ __forceinline__ void fetch(u32 stages, const Cache& k, const Cache& v, const Source& kv, int n) {
    const bool values = n > 0 && n % 2 == 0;
    const int i = kv.begin + (values ? n / 2 - 1 : (n + 1) / 2);
    if (i < kv.end) fetch_tile(stages + n % STAGES * TILE_BYTES, values ? v : k, kv, i);
    cp_async_commit_group();
}

// Copy the queries of a tile. Queries that do not exist become zeros.
__device__ __forceinline__ void store_queries(u32 tile, const u16* q, const QueryTile& queries) {
    constexpr int EACH = LINES / 2;  // 16-byte lines of the tile that a thread copies
    uint4 value[EACH];
    UNROLL for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x + THREADS * i, x = n / LINES;
        value[i] = make_uint4(0, 0, 0, 0);
        if (x < queries.n) value[i] = *(const uint4*)(q + queries.at(x) * HEAD_DIM + n % LINES * 8);
    }
    UNROLL for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x + THREADS * i;
        st_shared_16(tile + swizzled<TILE_Q>(n / LINES, n % LINES), value[i]);
    }
}

// Attend to the tiles of `kv`. The first STAGES tiles must have been requested with `fetch`. Called by all threads; a warp's
// sums are its own. `idle`: the warp has no query.
template <class Cache, class Source, class MaskType>
__device__ __forceinline__ void mainloop(const Cache& k, const Cache& v, const Source& kv, const MaskType& mask, bool idle,
                                         u32 queries, u32 stages, Softmax& acc) {
    float s[SCORES][4], rescale[2];
    u32 p[TILE_KV / 16][4];
    init(acc);
    cp_async_wait_group<STAGES - 1>();
    __syncthreads();  // all threads' copies of the first keys, and the queries, are visible
    if (!idle) {
        mma_scores(s, queries, stages);
        online_softmax(s, kv.begin * TILE_KV, mask, acc, rescale);
        pack_weights(p, s);
    }
    int n = STAGES, stage = 0;
    for (int i = kv.begin + 1; i < kv.end; ++i, n += 2) {
        cp_async_wait_group<STAGES - 4>();
        __syncthreads();  // the next tiles are visible, and the stages that are refilled below were read
        if (n > STAGES) fetch(stages, k, v, kv, n - 1);
        fetch(stages, k, v, kv, n);
        const int key_stage = stage + 1 == STAGES ? 0 : stage + 1;
        stage = key_stage + 1 == STAGES ? 0 : key_stage + 1;
        if (!idle) {
            mma_values(acc.o, p, stages + stage * TILE_BYTES);
            mma_scores(s, queries, stages + key_stage * TILE_BYTES);
            online_softmax(s, i * TILE_KV, mask, acc, rescale);
            pack_weights(p, s);
            rescale_values(acc.o, rescale);
        }
    }
    cp_async_wait_group<0>();
    __syncthreads();  // the last values are visible
    stage = stage + 1 == STAGES ? 0 : stage + 1;
    if (!idle) mma_values(acc.o, p, stages + (stage + 1 == STAGES ? 0 : stage + 1) * TILE_BYTES);
    finish_sums(acc);
}
