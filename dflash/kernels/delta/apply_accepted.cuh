// Commit: apply the accepted rows of the previous pass to the state of a head, S = decay * S + outer(u, k) for each row in
// order.
//
// Called by the first STATE_THREADS threads of a block. Macros: those of state.cuh. Bytes: 4 * (KEY_DIM + BLOCK_V + 1) a
// row.
#pragma once
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/ptx.cuh"
#include "state.cuh"

constexpr int APPLY_ROWS = 16;  // rows that are in shared memory at a time

// Indices of up to 64 accepted rows, held by a warp: two in each lane.
struct AcceptedRows {
    int low, high;

    __device__ __forceinline__ void load(const int* accepted) {
        low = accepted[threadIdx.x % 32], high = accepted[32 + threadIdx.x % 32];
    }
    // Called by all lanes of the warp.
    __device__ __forceinline__ int at(int i) const { return __shfl_sync(~0u, i & 32 ? high : low, i & 31); }
};

struct ApplyAccepted {
    AcceptedRows rows;
    int n;
    const float *k, *u, *decay;  // at the slot's first pending row and this head; `u` at the block's first value row
    float *lines, *factors;      // shared memory: APPLY_ROWS rows of KEY_DIM + BLOCK_V floats, and APPLY_ROWS floats

    // Start to copy up to APPLY_ROWS rows from row `start` on.
    __device__ __forceinline__ void fetch(int start) const {
        const int n_here = min(APPLY_ROWS, n - start), x = threadIdx.x % 32 * 4;
#pragma unroll 1
        for (int r = threadIdx.x / 32; r < n_here; r += STATE_THREADS / 32) {
            const size_t row = rows.at(start + r);
            float* const line = lines + r * (KEY_DIM + BLOCK_V);
            if (x < KEY_DIM) cp_async_16(smem_address(line + x), k + row * KEY_HEADS * KEY_DIM + x);
            if (x < BLOCK_V) cp_async_16(smem_address(line + KEY_DIM + x), u + row * VALUE_HEADS * VALUE_DIM + x);
            if (x == 0) cp_async_4(smem_address(factors + r), decay + row * VALUE_HEADS);
        }
        cp_async_commit_group();
    }

    // Apply all rows to the state of a thread. The first rows must have been fetched.
    __device__ __forceinline__ void apply(State& own, int lane) const {
        for (int start = 0; start < n; start += APPLY_ROWS) {
            if (start) fetch(start);
            cp_async_wait_group<0>();
            named_barrier_sync<1, STATE_THREADS>();
#pragma unroll 1
            for (int i = 0; i < min(APPLY_ROWS, n - start); ++i) {
                const float* const line = lines + i * (KEY_DIM + BLOCK_V);
                float key[COLUMNS];
                load_columns(line, lane, key);
                Updates update;
                update.load(line + KEY_DIM + threadIdx.x / LANES * ROWS_PER_THREAD);
                own.add(factors[i], update, key);
            }
            if (start + APPLY_ROWS < n) named_barrier_sync<1, STATE_THREADS>();
        }
    }
};
