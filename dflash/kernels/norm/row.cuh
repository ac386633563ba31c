// A row of a norm in the registers of a block: thread i of THREADS holds the vectors i, i + THREADS and so on.
//
// Macros: ROW_DIM, elements of a row; THREADS, a multiple of 32.
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(ROW_DIM) || !defined(THREADS)
#error "ROW_DIM and THREADS must be defined"
#endif
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of warps");

constexpr int VECTOR = ROW_DIM % 4 ? 1 : 4, N_VECTORS = ROW_DIM / VECTOR, PER_THREAD = (N_VECTORS + THREADS - 1) / THREADS,
              WARPS = THREADS / 32;

struct alignas(4 * VECTOR) RowVector {
    float v[VECTOR];
};
struct alignas(2 * VECTOR) RowHalves {
    u16 v[VECTOR];
};

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float sums[WARPS];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
    __syncthreads();  // the sums of all warps are stored
    return warp_sum(threadIdx.x % 32 < WARPS ? sums[threadIdx.x % 32] : 0.0f);
}

// Index of the thread's i-th vector in the row. The last vectors may lie past the end: see `in_row`.
__device__ __forceinline__ int vector_index(int i) { return i * THREADS + threadIdx.x; }
__device__ __forceinline__ bool in_row(int i) { return N_VECTORS % THREADS == 0 || vector_index(i) < N_VECTORS; }

// Load the row that starts at `x`; return 1 / sqrt(mean(x ** 2) + eps).
__device__ __forceinline__ float load_row(RowVector (&row)[PER_THREAD], const RowVector* x, float eps) {
    float squares = 0.0f;
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        if (in_row(i)) row[i] = x[vector_index(i)];
    }
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        if (!in_row(i)) continue;
        UNROLL for (int j = 0; j < VECTOR; ++j) squares = __fmaf_rn(row[i].v[j], row[i].v[j], squares);
    }
    return __frsqrt_rn(block_sum(squares) / ROW_DIM + eps);
}

// A thread's part of the gains of a norm. No kernel writes them, so they may be loaded before `wait_on_dependent_grids`.
struct RowGains {
    RowVector of[PER_THREAD];

    __device__ __forceinline__ explicit RowGains(const float* gains) {
        UNROLL for (int i = 0; i < PER_THREAD; ++i) {
            if (in_row(i)) of[i] = ((const RowVector*)gains)[vector_index(i)];
        }
    }
};

// Store the row of a block, times `factor` and the gains: to `half` as float16 clamped to [-65504, 65504], to `full` as
// float32, of each the row's start. A null output is not written.
__device__ __forceinline__ void store_row(RowVector (&row)[PER_THREAD], float factor, const RowGains& gains, RowHalves* half,
                                          RowVector* full) {
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        if (!in_row(i)) continue;
        RowHalves rounded;
        UNROLL for (int j = 0; j < VECTOR; ++j) {
            row[i].v[j] = row[i].v[j] * factor * gains.of[i].v[j];
            rounded.v[j] = half_saturated(row[i].v[j]);
        }
        if (half) half[vector_index(i)] = rounded;
        if (full) full[vector_index(i)] = row[i];
    }
}
