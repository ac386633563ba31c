// Top-k routing of up to 64 rows, and the work items of the next kernels. A pair is a row and one of its experts, number
// SLOTS * row + slot; a shared expert, number EXPERTS, has the last slot. An item is an expert and up to four of its pairs.
// Items of the shared expert come first, then the others by expert; pairs of an expert are in the order of their rows.
//
// A warp routes a row; the last block to finish makes the items. Grid (rows / 16 rounded up), block 512, shared memory about
// 12 * EXPERTS bytes (static). `arrived` must be 0 and is 0 again at the end. `table`, `scale` and macros: see topk.cuh.
// Bytes: 4 * (EXPERTS + N_SHARED) a row.
#include "../gpu/include/pdl.cuh"

#ifndef EXPERTS
#error "EXPERTS must be defined"
#endif
#define SCAN_THREADS 512
#include "last_block.cuh"
#include "prefix_sum.cuh"
#include "topk.cuh"

constexpr int PAIRS = 4, MAX_ROWS = 64, THREADS = SCAN_THREADS;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
expert_items(const float* logits, const int* counts, int most_rows, int* experts, float* factors, int* item_expert,
             int* item_pairs, int* n_items, int* arrived, const float* table, float scale) {
    __shared__ u64 rows_of[EXPERTS];
    __shared__ int first_of[EXPERTS], chosen[MAX_ROWS * N_USED];
    const int lane = threadIdx.x % 32, row = blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    launch_dependent_grids();
    for (int e = threadIdx.x; e < EXPERTS; e += THREADS) rows_of[e] = 0;
    wait_on_dependent_grids();
    const int n_rows = min(counts[0], min(most_rows, MAX_ROWS)), shared_items = N_SHARED * ((n_rows + PAIRS - 1) / PAIRS);
    if (row < n_rows) {
        int expert;
        float share;
        const float* of_row = logits + row * (EXPERTS + N_SHARED);
        choose_topk(of_row, lane, table, scale, expert, share);
        write_choice(expert, share, of_row + EXPERTS, lane, experts + row * N_USED, factors + row * SLOTS);
        if (lane < N_USED) chosen[row * N_USED + lane] = expert;
    }
    if (gridDim.x > 1) {
        if (!is_last(arrived)) return;
        for (int i = threadIdx.x; i < n_rows * N_USED; i += THREADS) chosen[i] = __ldcg(experts + i);
    }
    __syncthreads();  // `chosen` is complete
    for (int i = threadIdx.x; i < n_rows * N_USED; i += THREADS) atomicOr(rows_of + chosen[i], (u64)1 << i / N_USED);
    __syncthreads();  // `rows_of` is complete
    int before = shared_items;
    for (int start = 0; start < EXPERTS; start += THREADS) {
        const int e = start + threadIdx.x, n_pairs = e < EXPERTS ? __popcll(rows_of[e]) : 0,
                  n = (n_pairs + PAIRS - 1) / PAIRS;
        int all;
        const int first = before + exclusive_sum(n, all);
        before += all;
        if (e < EXPERTS) first_of[e] = first;
        for (int i = 0; i < n; ++i) item_expert[first + i] = e;
        for (int i = n_pairs; i < n * PAIRS; ++i) item_pairs[first * PAIRS + i] = -1;
    }
    for (int i = threadIdx.x; i < shared_items * PAIRS; i += THREADS) {
        item_pairs[i] = i < n_rows ? i * SLOTS + N_USED : -1;
        if (i % PAIRS == 0) item_expert[i / PAIRS] = EXPERTS;
    }
    if (threadIdx.x == 0) *n_items = before;
    __syncthreads();  // `first_of` is complete
    for (int i = threadIdx.x; i < n_rows * N_USED; i += THREADS) {
        const int r = i / N_USED, e = chosen[i], index = __popcll(rows_of[e] & ((u64)1 << r) - 1);
        item_pairs[first_of[e] * PAIRS + index] = r * SLOTS + i % N_USED;
    }
}
