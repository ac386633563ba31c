// What there is to do for pending rows: items are units (parts.cuh) times parts of their text times heads of the cache.
#pragma once
#include "flash.cuh"
#include "parts.cuh"
#include "leave.cuh"

// A batch, in shared memory.
struct Batch {
    int n, items[PENDING], length[PENDING];  // of sequences
    signed char first[PENDING + 1], parent[PENDING], depth[PENDING];
};

struct Item {
    Text text;
    Queries queries;
    int part, rows, own;   // rows of the unit, the first of which is row `own` of the sequence
    int sequence, before;  // and how many items there are before those of the sequence
};

// Fill `batch`; to be called by the first PENDING threads.
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
        const Unit unit = unit_at(row, end - begin, MOST_ROWS, committed);
        items += unit.parts * KV;
        row += unit.rows;
    }
    batch.items[s] = items, batch.first[s] = (signed char)begin, batch.length[s] = committed;
    if (s == n - 1) batch.first[n] = (signed char)end;
}

// Find item `n`, heads innermost; whether there is one. Called for growing numbers, with sequence and before 0 at first.
__device__ __forceinline__ bool find(int n, Item& item, const Batch& batch, const int* pages, int max_pages) {
    item.queries.n = 0;
    while (item.sequence < batch.n && n >= item.before + batch.items[item.sequence]) item.before += batch.items[item.sequence++];
    const int s = item.sequence;
    if (s == batch.n) return false;
    const int begin = batch.first[s], rows = batch.first[s + 1] - begin, committed = batch.length[s];
    n -= item.before;
    Unit unit = unit_at(0, rows, MOST_ROWS, committed);
    while (n >= unit.parts * KV) {
        n -= unit.parts * KV;
        unit = unit_at(unit.first + unit.rows, rows, MOST_ROWS, committed);
    }
    const int last = committed + unit.first + unit.rows, end = (n / KV + 1) * unit.steps;
    item.text = {pages + (size_t)s * max_pages, n % KV, (end - unit.steps) * (STEP / KEYS),
                 min(end * (STEP / KEYS), (last + KEYS - 1) / KEYS), committed, committed + rows};
    item.queries = {begin + unit.first, 0, unit.rows * GROUP, n % KV};
    item.part = n / KV, item.rows = unit.rows, item.own = unit.first;
    return true;
}

// What row `i` of an item sees, for `Sight`.
__device__ __forceinline__ void look(const Item& item, int i, const Batch& batch, int* limits, u64* above) {
    const int own = item.own + i, begin = item.queries.row - item.own;
    const bool chain = batch.depth[begin + own] == own;
    limits[i] = item.text.committed + (chain ? own + 1 : 0);
    u64 bits = 0;
    if (!chain) {
        for (int row = own; row >= 0; row = batch.parent[begin + row]) bits |= 1ull << row;
    }
    above[i] = bits;
}

// Leave what a thread's two queries have summed to `combine`.
__device__ __forceinline__ void leave(const Item& item, const Sums& sums, float* partial, float* stats) {
    const int row = query_of(threadIdx.x % 2) / GROUP;
    const bool is_there = item.part < parts_of(item.text.committed + item.own + row);
    leave(item.queries, item.part, is_there, sums, partial, stats);
}
