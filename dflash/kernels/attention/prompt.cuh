// What there is to do for text, whose rows are chains: tiles of queries, the last ones first, heads of the cache innermost.
#pragma once
#include "flash.cuh"

// Find tile `n`; whether there is one.
__device__ __forceinline__ bool find(int n, Text& text, Queries& queries, int sequences, const int* first, const int* length,
                                     const int* pages, int max_pages) {
    int total = 0, s = 0;
    for (int i = 0; i < sequences; ++i) total += ((first[i + 1] - first[i]) * GROUP + QUERIES - 1) / QUERIES;
    const int head = n % KV;
    n = total - 1 - n / KV;
    if (n < 0) return false;
    for (;; ++s) {
        const int tiles = ((first[s + 1] - first[s]) * GROUP + QUERIES - 1) / QUERIES;
        if (n < tiles) break;
        n -= tiles;
    }
    const int rows = first[s + 1] - first[s], committed = length[s];
    queries = {first[s], n * QUERIES, min(QUERIES, rows * GROUP - n * QUERIES), head};
    const int last = committed + (queries.start + queries.n - 1) / GROUP + 1;
    text = {pages + (size_t)s * max_pages, head, 0, (last + KEYS - 1) / KEYS, committed, committed + rows};
    return true;
}

__device__ __forceinline__ Sight sight_of(const Text& text, const Queries& queries) {
    return {text.committed, text.committed + queries.start / GROUP + 1, queries.start, 0, 0};
}
