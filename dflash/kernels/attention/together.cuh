// A tile of queries meets its text, by warps that copy the tiles of the text and multiply them together.
//
// Block 2 * QUERIES; shared QUERY_TILE + SLOTS * TILE + 1024 bytes. Macros: SLOTS, tiles of text that are held.
#pragma once
#include "../gpu/include/cp_async.cuh"
#include "products.cuh"
#include "flash.cuh"

#ifndef SLOTS
#error "SLOTS must be defined"
#endif
static_assert(SLOTS >= 4, "a product of scores and one of values read two tiles each");

constexpr int THREADS = 2 * QUERIES;

// Copy tile `i` of keys or values to a slot; zeros for what is not in the cache.
__device__ __forceinline__ void fetch_tile(u32 slot, const u16* cache, const Text& text, int i) {
    const int position = i * KEYS;
    const size_t place_of_page = (size_t)__ldg(text.pages + position / PAGE) * PAGE + position % PAGE;
    const u16* from = cache + (place_of_page * KV + text.head) * HEAD;
#pragma unroll 2
    for (int n = threadIdx.x; n < KEYS * LINES; n += THREADS) {
        const int key = n / LINES, line = n % LINES;
        cp_async_16_zfill(slot + place<KEYS>(key, line), from + (size_t)key * (KV * HEAD) + line * 8,
                        position + key < text.written);
    }
}

// The tiles of a text are read in the order K0 K1 V0 K2 V1 ...; tile n of these goes to slot n % SLOTS. How one is copied is for
// `fetch_tile` of the text to tell.
template <class Cache, class Source>
__device__ __forceinline__ void fetch(u32 slots, const Cache& k, const Cache& v, const Source& text, int n) {
    const bool values = n > 0 && n % 2 == 0;
    const int i = text.begin + (values ? n / 2 - 1 : (n + 1) / 2);
    if (i < text.end) fetch_tile(slots + n % SLOTS * TILE, values ? v : k, text, i);
    cp_async_commit_group();
}

// Copy the queries of a tile; those that do not exist are zeros.
__device__ __forceinline__ void store_queries(u32 tile, const u16* q, const Queries& queries) {
    constexpr int EACH = LINES / 2;  // of the tile's lines, for a thread
    uint4 value[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x + THREADS * i, x = n / LINES;
        value[i] = make_uint4(0, 0, 0, 0);
        if (x < queries.n) value[i] = *(const uint4*)(q + queries.at(x) * HEAD + n % LINES * 8);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x + THREADS * i;
        st_shared_16(tile + place<QUERIES>(n / LINES, n % LINES), value[i]);
    }
}

// Read a text whose first SLOTS tiles are being fetched; all threads take part. The sums are a warp's own; idle warps have no
// query that exists.
template <class Cache, class Source, class View>
__device__ __forceinline__ void read(const Cache& k, const Cache& v, const Source& text, const View& sight, bool idle,
                                     u32 queries, u32 slots, Sums& sums) {
    float s[SCORES][4], rescale[2];
    u32 p[KEYS / 16][4];
    clear(sums);
    cp_async_wait_group<SLOTS - 1>();
    __syncthreads();
    if (!idle) {
        multiply_scores(s, queries, slots);
        soften(s, text.begin * KEYS, sight, sums, rescale);
        pack(p, s);
    }
    int n = SLOTS, slot = 0;
    for (int i = text.begin + 1; i < text.end; ++i, n += 2) {
        cp_async_wait_group<SLOTS - 4>();
        __syncthreads();
        if (n > SLOTS) fetch(slots, k, v, text, n - 1);
        fetch(slots, k, v, text, n);
        const int of_keys = slot + 1 == SLOTS ? 0 : slot + 1;
        slot = of_keys + 1 == SLOTS ? 0 : of_keys + 1;
        if (!idle) {
            multiply_values(sums.o, p, slots + slot * TILE);
            multiply_scores(s, queries, slots + of_keys * TILE);
            soften(s, i * KEYS, sight, sums, rescale);
            pack(p, s);
            multiply_all(sums.o, rescale);
        }
    }
    cp_async_wait_group<0>();
    __syncthreads();
    slot = slot + 1 == SLOTS ? 0 : slot + 1;
    if (!idle) multiply_values(sums.o, p, slots + (slot + 1 == SLOTS ? 0 : slot + 1) * TILE);
    complete(sums);
}
