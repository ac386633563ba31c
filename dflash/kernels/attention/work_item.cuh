// Queries and context of a block of attention.
//
// Macros: GROUP_SIZE, query heads that share a KV head; KV_HEADS; TILE_Q, queries of a tile.
#pragma once
#include "../gpu/include/types.cuh"

#if !defined(GROUP_SIZE) || !defined(KV_HEADS) || !defined(TILE_Q)
#error "GROUP_SIZE, KV_HEADS and TILE_Q must be defined"
#endif
static_assert(GROUP_SIZE <= TILE_Q, "the queries of a row fit in a tile");

constexpr int PAGE = 256, PENDING = 64, QUERY_HEADS = KV_HEADS * GROUP_SIZE;
constexpr int MAX_ROWS = TILE_Q / GROUP_SIZE < PENDING ? TILE_Q / GROUP_SIZE : PENDING;  // rows of a query tile in decode
#define MINUS_INFINITY __int_as_float(0xff800000)

// Queries start .. start + n - 1 of the rows of a sequence, for KV head `head`. The first row of the sequence is row `row`
// of the batch.
struct QueryTile {
    int row, start, n, head;

    __device__ __forceinline__ size_t at(int x) const {
        return (size_t)(row + (start + x) / GROUP_SIZE) * QUERY_HEADS + head * GROUP_SIZE + (start + x) % GROUP_SIZE;
    }
};

// Tiles begin .. end - 1 of a sequence's context. `committed`: accepted positions; `written`: positions in the cache.
struct KvRange {
    const int* pages;
    int head, begin, end, committed, written;
};
