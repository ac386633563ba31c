// Tile scheduler of decode. A work item is a unit of rows (split_kv.cuh), a split of its context and a KV head.
//
// Macros: those of work_item.cuh; TILE_KV, positions of a tile; MAX_SPLITS.
#pragma once
#include "split_kv.cuh"
#include "work_item.cuh"

#ifndef TILE_KV
#error "TILE_KV must be defined"
#endif

// The batch, in shared memory. `items`: work items of each sequence.
struct Batch {
    int n, items[PENDING], length[PENDING];  // number of sequences; of each, items and accepted positions
    signed char first[PENDING + 1], parent[PENDING], depth[PENDING];
};

struct Item {
    KvRange kv;
    QueryTile queries;
    int split, rows, own;  // rows of the unit; the first one is row `own` of the sequence
    int sequence, before;  // sequence, and number of items of earlier sequences
};

// Fill `batch`. Called by the first PENDING threads.
__device__ __forceinline__ void read_batch(Batch& batch, const int* counts, const int* first, const int* parent,
                                           const int* depth, const int* length, int max_rows, int max_sequences) {
    const int s = threadIdx.x, n = counts[1];
    if (s == 0) batch.n = n;
    if (s < max_rows) batch.parent[s] = (signed char)parent[s], batch.depth[s] = (signed char)depth[s];
    if (s >= max_sequences) return;
    const int begin = first[s], end = first[s + 1], committed = length[s];
    if (s >= n) return;
    int items = 0;
    for (int row = 0; row < end - begin;) {
        const SplitUnit unit = unit_at(row, end - begin, MAX_ROWS, committed);
        items += unit.n_splits * KV_HEADS;
        row += unit.rows;
    }
    batch.items[s] = items, batch.first[s] = (signed char)begin, batch.length[s] = committed;
    if (s == n - 1) batch.first[n] = (signed char)end;
}

// Find item `n`; KV heads are the innermost dimension. Returns false if there is none. Must be called with growing `n`;
// `sequence` and `before` must be 0 at first.
__device__ __forceinline__ bool find(int n, Item& item, const Batch& batch, const int* pages, int max_pages) {
    item.queries.n = 0;
    while (item.sequence < batch.n && n >= item.before + batch.items[item.sequence])
        item.before += batch.items[item.sequence++];
    const int s = item.sequence;
    if (s == batch.n) return false;
    const int begin = batch.first[s], rows = batch.first[s + 1] - begin, committed = batch.length[s];
    n -= item.before;
    SplitUnit unit = unit_at(0, rows, MAX_ROWS, committed);
    while (n >= unit.n_splits * KV_HEADS) {
        n -= unit.n_splits * KV_HEADS;
        unit = unit_at(unit.first + unit.rows, rows, MAX_ROWS, committed);
    }
    const int last = committed + unit.first + unit.rows, end = (n / KV_HEADS + 1) * unit.steps;
    item.kv = {pages + (size_t)s * max_pages,
               n % KV_HEADS,
               (end - unit.steps) * (STEP / TILE_KV),
               min(end * (STEP / TILE_KV), (last + TILE_KV - 1) / TILE_KV),
               committed,
               committed + rows};
    item.queries = {begin + unit.first, 0, unit.rows * GROUP_SIZE, n % KV_HEADS};
    item.split = n / KV_HEADS, item.rows = unit.rows, item.own = unit.first;
    return true;
}

// Write the mask of row `i` of an item, see `Mask`.
__device__ __forceinline__ void read_mask(const Item& item, int i, const Batch& batch, int* limits, u64* above) {
    const int own = item.own + i, begin = item.queries.row - item.own;
    const bool chain = batch.depth[begin + own] == own;
    limits[i] = item.kv.committed + (chain ? own + 1 : 0);
    u64 bits = 0;
    if (!chain) {
        for (int row = own; row >= 0; row = batch.parent[begin + row]) bits |= 1ull << row;
    }
    above[i] = bits;
}
