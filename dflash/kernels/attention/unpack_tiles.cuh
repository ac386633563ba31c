// Producers of the pipeline of mainloop_sm90.cuh for a q8_0 cache: one thread copies tiles of bytes with TMA, three warps
// unpack them to float16 tiles, with the values of q8_0.cuh.
//
// Of each 16 elements of a key, word t of its bytes goes to columns 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9, the ones that a
// lane of decode_q8_0_warps.cu multiplies together; `store_queries_of_words` stores queries likewise. Elements of values
// keep their order.
//
// Macros: those of mainloop_sm90.cuh; RAW_STAGES, tiles of bytes in shared memory.
#pragma once
#define UNPACKED 1
#include "../gpu/include/pdl.cuh"
#include "mainloop_sm90.cuh"
#include "parts.cuh"
#include "q8_0.cuh"

#ifndef RAW_STAGES
#error "RAW_STAGES must be defined"
#endif

constexpr int RAW_BYTES = TILE_KV * HEAD_BYTES, UNPACKERS = 96;  // threads that unpack
enum TileKind { KEY_TILE, VALUE_TILE, NO_TILE };

using RawPipeline = PipelineState<RAW_STAGES, RAW_BYTES>;

// Called by one thread; then a block barrier.
__device__ __forceinline__ void init_raw_pipeline(const RawPipeline& raw) {
    for (int i = 0; i < RAW_STAGES; ++i) mbarrier_init(raw.full + 8 * i, 1), mbarrier_init(raw.empty + 8 * i, UNPACKERS / 32);
}

// Copy the tiles of all items of the block, by one thread. `kinds`: of the tile in each stage. Tiles with accepted positions
// only need not wait for earlier kernels.
__device__ __forceinline__ void copy_raw_items(RawPipeline raw, const TensorMap& k, const TensorMap& v, const Batch& batch,
                                               const int* pages, int max_pages, volatile int* kinds) {
    Item item;
    item.sequence = item.before = 0;
    bool waited = false;
    const auto copy = [&](const TensorMap& cache, TileKind kind, int i) {
        const int position = i * TILE_KV;
        if (!waited && position + TILE_KV > item.kv.committed) {
            wait_on_dependent_grids();
            waited = true;
        }
        const int row = __ldg(item.kv.pages + position / PAGE) * PAGE + position % PAGE;
        mbarrier_wait(raw.empty_barrier(), raw.phase ^ 1);
        kinds[raw.stage] = kind;
        mbarrier_arrive_expect_tx(raw.full_barrier(), RAW_BYTES);
        tma_load_2d(raw.tile(), cache, item.kv.head * (HEAD_BYTES / 4), row, raw.full_barrier());
        raw.next();
    };
    for (int n = blockIdx.x; find(n, item, batch, pages, max_pages); n += gridDim.x) {
#pragma unroll 1
        for (int p = 0; p < PARTS; ++p) {
            const KvRange part = part_of(item, p);
#pragma unroll 1
            for (int i = part.begin; i <= part.end; ++i) {
                if (i < part.end) copy(k, KEY_TILE, i);
                if (i > part.begin) copy(v, VALUE_TILE, i - 1);
            }
        }
    }
    if (!waited) wait_on_dependent_grids();
    mbarrier_wait(raw.empty_barrier(), raw.phase ^ 1);
    kinds[raw.stage] = NO_TILE;
    mbarrier_arrive(raw.full_barrier());
}

// Unpack a tile, as `thread` of UNPACKERS. Of two lines of 8 elements, threads store either one first, so that the 8 threads of
// a phase use all banks.
__device__ __forceinline__ void unpack_tile(u32 to, const u8* from, bool keys, int thread) {
    constexpr int ROW_LINES = HEAD_DIM / 16;  // of 16 bytes
#pragma unroll 2
    for (int n = thread; n < TILE_KV * ROW_LINES; n += UNPACKERS) {
        const int row = n / ROW_LINES, line = n % ROW_LINES, second = line / 4 % 2;
        const u8* own = from + row * HEAD_BYTES;
        const uint4 w = *(const uint4*)(own + line * 16);
        const u32 scale = both(*(const u16*)(own + HEAD_DIM + line / 2 * 2));
        uint4 lines[2];
        if (keys) {
            const uint4 low = {low_values(w.x, scale), low_values(w.y, scale), low_values(w.z, scale), low_values(w.w, scale)};
            const uint4 high = {high_values(w.x, scale), high_values(w.y, scale), high_values(w.z, scale),
                                high_values(w.w, scale)};
            lines[0] = second ? high : low, lines[1] = second ? low : high;
        } else {
            const uint4 s = second ? make_uint4(w.z, w.w, w.x, w.y) : w;
            lines[0] = {low_values(s.x, scale), high_values(s.x, scale), low_values(s.y, scale), high_values(s.y, scale)};
            lines[1] = {low_values(s.z, scale), high_values(s.z, scale), low_values(s.w, scale), high_values(s.w, scale)};
        }
        UNROLL for (int i = 0; i < 2; ++i) st_shared_16(to + swizzled<TILE_KV>(row, 2 * line + (i ^ second)), lines[i]);
    }
}

// Unpack all tiles that `copy_raw_items` copies. Called by threads 0 to UNPACKERS - 1; `raw_stages`: address of the stages.
__device__ __forceinline__ void unpack_tiles(RawPipeline raw, Pipeline pipeline, const u8* raw_stages,
                                             const volatile int* kinds, int thread) {
    for (;;) {
        mbarrier_wait(raw.full_barrier(), raw.phase);
        const int kind = kinds[raw.stage];
        if (kind == NO_TILE) return;
        mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
        unpack_tile(pipeline.tile(), raw_stages + raw.stage * RAW_BYTES, kind == KEY_TILE, thread);
        fence_async_proxy();  // wgmma reads the tile through the async proxy
        __syncwarp();         // the warp has written its part of the tile and read that of the bytes
        if (thread % 32 == 0) mbarrier_arrive(pipeline.full_barrier()), mbarrier_arrive(raw.empty_barrier());
        raw.next(), pipeline.next();
    }
}

// Copy the queries of a warpgroup, with elements in the order of keys. Queries that do not exist become zeros.
__device__ __forceinline__ void store_queries_of_words(u32 tile, const u16* q, const QueryTile& queries) {
    constexpr int PAIRS = LINES / 2;  // of lines of a row
#pragma unroll 4
    for (int n = threadIdx.x % 128; n < 64 * PAIRS; n += 128) {
        const int row = n / PAIRS, pair = n % PAIRS, x = threadIdx.x / 128 * 64 + row;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (x < queries.n) {
            const uint4* from = (const uint4*)(q + queries.at(x) * HEAD_DIM + pair * 16);
            a = from[0], b = from[1];
        }
        st_shared_16(tile + swizzled<64>(row, 2 * pair), make_uint4(a.x, a.z, b.x, b.z));
        st_shared_16(tile + swizzled<64>(row, 2 * pair + 1), make_uint4(a.y, a.w, b.y, b.w));
    }
    fence_async_proxy();  // wgmma reads them through the async proxy
}
