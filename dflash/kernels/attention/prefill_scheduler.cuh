// Tile scheduler of prefill, where the rows of a sequence are a chain. A work item is a query tile and a KV head. KV heads
// are the innermost dimension. The last tiles of a sequence come first, since they have the longest context.
//
// Macros: those of online_softmax.cuh.
#pragma once
#include "online_softmax.cuh"

// Find work item `n`. Returns false if there is none.
__device__ __forceinline__ bool find(int n, KvRange& kv, QueryTile& queries, int sequences, const int* first,
                                     const int* length, const int* pages, int max_pages) {
    int total = 0, s = 0;
    for (int i = 0; i < sequences; ++i) total += ((first[i + 1] - first[i]) * GROUP_SIZE + TILE_Q - 1) / TILE_Q;
    const int head = n % KV_HEADS;
    n = total - 1 - n / KV_HEADS;
    if (n < 0) return false;
    for (;; ++s) {
        const int tiles = ((first[s + 1] - first[s]) * GROUP_SIZE + TILE_Q - 1) / TILE_Q;
        if (n < tiles) break;
        n -= tiles;
    }
    const int rows = first[s + 1] - first[s], committed = length[s];
    queries = {first[s], n * TILE_Q, min(TILE_Q, rows * GROUP_SIZE - n * TILE_Q), head};
    const int last = committed + (queries.start + queries.n - 1) / GROUP_SIZE + 1;
    kv = {pages + (size_t)s * max_pages, head, 0, (last + TILE_KV - 1) / TILE_KV, committed, committed + rows};
    return true;
}

__device__ __forceinline__ Mask mask_of(const KvRange& kv, const QueryTile& queries) {
    return {kv.committed, kv.committed + queries.start / GROUP_SIZE + 1, queries.start, 0, 0};
}
