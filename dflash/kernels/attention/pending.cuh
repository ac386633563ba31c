// What there is to do for pending rows: items are units (parts.cuh) times parts of their text times heads of the cache.
#pragma once
#include "flash.cuh"
#include "parts.cuh"

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

// Leave what a thread's two queries have summed to `combine`, in the order of parts.cuh. Neighbours exchange halves of it, so
// that each has four columns of one query.
__device__ __forceinline__ void leave(const Item& item, const Sums& sums, float* partial, float* stats) {
    const int odd = threadIdx.x % 2, x = query_of(odd), row = x / GROUP;
    if (threadIdx.x / 32 * 16 >= item.queries.n) return;
    const bool is_there = x < item.queries.n && item.part < parts_of(item.text.committed + item.own + row);
    const size_t of_part = part_at(item.queries.row + row, item.queries.head, item.part);
    float* to = partial + of_part * (GROUP * HEAD) + x % GROUP * 8 + threadIdx.x % 4 / 2 * 4;
    constexpr int MANY = 4;  // at a time
#pragma unroll
    for (int start = 0; start < HEAD / 8; start += MANY) {
        float4 x4[MANY];
#pragma unroll
        for (int i = 0; i < MANY && start + i < HEAD / 8; ++i) {
            const float* o = sums.o[start + i];
            const float a = __shfl_xor_sync(~0u, odd ? o[0] : o[2], 1), b = __shfl_xor_sync(~0u, odd ? o[1] : o[3], 1);
            x4[i] = odd ? make_float4(a, b, o[2], o[3]) : make_float4(o[0], o[1], a, b);
        }
        if (!is_there) continue;
#pragma unroll
        for (int i = 0; i < MANY && start + i < HEAD / 8; ++i) *(float4*)(to + (start + i) * (8 * GROUP)) = x4[i];
    }
    if (is_there && threadIdx.x % 4 < 2) {
        const float top = odd ? sums.top[1] : sums.top[0], sum = odd ? sums.sum[1] : sums.sum[0];
        *(float2*)(stats + 2 * (of_part * GROUP + x % GROUP)) = make_float2(top, sum);
    }
}
