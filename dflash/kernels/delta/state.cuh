// State of a head, (VALUE_DIM, KEY_DIM) float32, in the registers of a block: LANES neighbouring threads hold
// ROWS_PER_THREAD value rows, each thread COLUMNS key columns of them. Every kernel applies the same operations in the same
// order to an element, so the bits of a state do not depend on the grid.
//
// Macros: those of shape.cuh; BLOCK_V, value rows of a block; ROWS_PER_THREAD, 2 or 4.
#pragma once
#include "../gpu/include/types.cuh"
#include "shape.cuh"

#if !defined(BLOCK_V) || !defined(ROWS_PER_THREAD)
#error "BLOCK_V and ROWS_PER_THREAD must be defined"
#endif
constexpr int LANES = 8, STATE_THREADS = BLOCK_V / ROWS_PER_THREAD * LANES;  // threads that hold the rows of a block
constexpr int COLUMNS = KEY_DIM / LANES, VECTOR = COLUMNS % 4 ? 2 : 4, LANES_PER_ROW = LANES / ROWS_PER_THREAD;
static_assert(KEY_DIM % 16 == 0 && LANES == 8, "eight threads hold a row, two or four columns at a time");
static_assert(ROWS_PER_THREAD == 2 || ROWS_PER_THREAD == 4, "LANES_PER_ROW neighbouring lanes reduce one row");

// Load a lane's columns of the row at `from`: VECTOR consecutive columns, then those of the next lane.
__device__ __forceinline__ void load_columns(const float* from, int lane, float (&to)[COLUMNS]) {
    UNROLL for (int c = 0; c < COLUMNS; c += VECTOR) {
        if constexpr (VECTOR == 4) {
            const float4 x = *(const float4*)(from + c * LANES + 4 * lane);
            to[c] = x.x, to[c + 1] = x.y, to[c + 2] = x.z, to[c + 3] = x.w;
        } else {
            const float2 x = *(const float2*)(from + c * LANES + 2 * lane);
            to[c] = x.x, to[c + 1] = x.y;
        }
    }
}

__device__ __forceinline__ void store_columns(float* to, int lane, const float (&from)[COLUMNS]) {
    UNROLL for (int c = 0; c < COLUMNS; c += VECTOR) {
        if constexpr (VECTOR == 4) {
            *(float4*)(to + c * LANES + 4 * lane) = make_float4(from[c], from[c + 1], from[c + 2], from[c + 3]);
        } else {
            *(float2*)(to + c * LANES + 2 * lane) = make_float2(from[c], from[c + 1]);
        }
    }
}

// A partial sum for each row of a thread; the total is the sum over the LANES threads of the row.
struct RowSums {
    float of[ROWS_PER_THREAD];

    // Total of row `row_of(lane)`. Each step halves the number of rows that a lane still sums.
    __device__ __forceinline__ float reduce(int lane) const {
        const bool upper = lane & 4, second = lane & 2;
        float sum[ROWS_PER_THREAD / 2];
        UNROLL for (int r = 0; r < ROWS_PER_THREAD / 2; ++r) {
            const float give = upper ? of[r] : of[r + ROWS_PER_THREAD / 2];
            sum[r] = __fadd_rn(upper ? of[r + ROWS_PER_THREAD / 2] : of[r], __shfl_xor_sync(~0u, give, 4));
        }
        if constexpr (ROWS_PER_THREAD == 4) {
            const float give = second ? sum[0] : sum[ROWS_PER_THREAD / 2 - 1];
            sum[0] = __fadd_rn(second ? sum[ROWS_PER_THREAD / 2 - 1] : sum[0], __shfl_xor_sync(~0u, give, 2));
        } else {
            sum[0] = __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], 2));
        }
        return __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], 1));
    }
};

__device__ __forceinline__ int row_of(int lane) { return lane / LANES_PER_ROW; }

// Factors with which a key is added to each row of a thread.
struct Updates {
    float of[ROWS_PER_THREAD];

    // Receive `mine` from the lanes that reduce each row, see `row_of`.
    __device__ __forceinline__ void spread(float mine, int lane) {
        if constexpr (ROWS_PER_THREAD == 2) {
            const float other = __shfl_xor_sync(~0u, mine, 4);
            of[0] = lane & 4 ? other : mine, of[1] = lane & 4 ? mine : other;
        } else {
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) of[r] = __shfl_sync(~0u, mine, r * LANES_PER_ROW, LANES);
        }
    }
    __device__ __forceinline__ void load(const float* from) {
        if constexpr (ROWS_PER_THREAD == 4) {
            const float4 x = *(const float4*)from;
            of[0] = x.x, of[1] = x.y, of[ROWS_PER_THREAD - 2] = x.z, of[ROWS_PER_THREAD - 1] = x.w;
        } else {
            const float2 x = *(const float2*)from;
            of[0] = x.x, of[1] = x.y;
        }
    }
};

struct State {
    float cell[ROWS_PER_THREAD][COLUMNS];

    // `rows` is the first of the thread's rows in memory.
    __device__ __forceinline__ void load(const float* rows, int lane) {
        UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) load_columns(rows + r * KEY_DIM, lane, cell[r]);
    }
    __device__ __forceinline__ void store(float* rows, int lane) const {
        UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) store_columns(rows + r * KEY_DIM, lane, cell[r]);
    }

    // S = factor * S + outer(update, key)
    __device__ __forceinline__ void add(float factor, const Updates& update, const float (&key)[COLUMNS]) {
        UNROLL for (int c = 0; c < COLUMNS; ++c)
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r)
                cell[r][c] = __fmaf_rn(update.of[r], key[c], __fmul_rn(factor, cell[r][c]));
    }

    // S = S + outer(update, key)
    __device__ __forceinline__ void add(const Updates& update, const float (&key)[COLUMNS]) {
        UNROLL for (int c = 0; c < COLUMNS; ++c)
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) cell[r][c] = __fmaf_rn(update.of[r], key[c], cell[r][c]);
    }
    __device__ __forceinline__ void scale(float factor) {
        UNROLL for (int c = 0; c < COLUMNS; ++c)
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) cell[r][c] = __fmul_rn(factor, cell[r][c]);
    }

    // S @ vector
    __device__ __forceinline__ RowSums read(const float (&vector)[COLUMNS]) const {
        RowSums even, odd;
        UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) even.of[r] = odd.of[r] = 0.0f;
        UNROLL for (int c = 0; c < COLUMNS; c += 2)
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) {
                even.of[r] = __fmaf_rn(cell[r][c], vector[c], even.of[r]);
                odd.of[r] = __fmaf_rn(cell[r][c + 1], vector[c + 1], odd.of[r]);
            }
        UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) even.of[r] = __fadd_rn(even.of[r], odd.of[r]);
        return even;
    }
};
