// The memory of a head in the registers of a block: LANES threads side by side hold ROWS value rows, each COLUMNS of the key
// columns of both. Every element is computed by one sequence of operations, whoever asks for it.
#pragma once

constexpr int COLUMNS = WIDTH / LANES, VECTOR = COLUMNS % 4 ? 2 : 4, APART = 4 / ROWS;
static_assert(WIDTH % 16 == 0 && LANES == 8, "eight threads have a row of keys, two or four columns at a time");
static_assert(ROWS == 2 || ROWS == 4, "of the eight lanes, every APART-th names a row");

// A lane's columns of a row at `from` in any memory; VECTOR of them lie side by side, then those of the next lane.
__device__ __forceinline__ void load_columns(const float* from, int lane, float (&to)[COLUMNS]) {
#pragma unroll
    for (int c = 0; c < COLUMNS; c += VECTOR) {
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
#pragma unroll
    for (int c = 0; c < COLUMNS; c += VECTOR) {
        if constexpr (VECTOR == 4) {
            *(float4*)(to + c * LANES + 4 * lane) = make_float4(from[c], from[c + 1], from[c + 2], from[c + 3]);
        } else {
            *(float2*)(to + c * LANES + 2 * lane) = make_float2(from[c], from[c + 1]);
        }
    }
}

// Sums over what a thread's rows hold for a key and for a query.
struct Sums {
    float of_key[ROWS], of_query[ROWS];

    // Over all lanes, of the row that `row_of(lane)` names: for the key in the lower four lanes, for the query in the upper
    // ones. Each step halves what a lane still sums.
    __device__ __forceinline__ float reduce(int lane) const {
        const bool upper = lane & 4, second = lane & 2;
        float sum[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; ++r) {
            const float give = upper ? of_key[r] : of_query[r];
            sum[r] = __fadd_rn(upper ? of_query[r] : of_key[r], __shfl_xor_sync(~0u, give, 4));
        }
#pragma unroll
        for (int r = 0; r < ROWS / 2; ++r) {
            const float give = second ? sum[r] : sum[r + ROWS / 2];
            sum[r] = __fadd_rn(second ? sum[r + ROWS / 2] : sum[r], __shfl_xor_sync(~0u, give, 2));
        }
        const bool odd = ROWS == 4 && lane & 1;
        const float give = ROWS == 4 && !odd ? sum[ROWS / 2 - 1] : sum[0];
        return __fadd_rn(odd ? sum[ROWS / 2 - 1] : sum[0], __shfl_xor_sync(~0u, give, 1));
    }
};

__device__ __forceinline__ int row_of(int lane) { return lane % 4 / APART; }

// What the rows get of a key, of which every lane below 4 has that of `row_of(lane)`.
struct Amounts {
    float of[ROWS];

    __device__ __forceinline__ void spread(float mine) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) of[r] = __shfl_sync(~0u, mine, r * APART, LANES);
    }
    __device__ __forceinline__ void load(const float* from) {
        if constexpr (ROWS == 4) {
            const float4 x = *(const float4*)from;
            of[0] = x.x, of[1] = x.y, of[ROWS - 2] = x.z, of[ROWS - 1] = x.w;
        } else {
            const float2 x = *(const float2*)from;
            of[0] = x.x, of[1] = x.y;
        }
    }
    __device__ __forceinline__ float pick(int row) const {
        float found = of[0];
#pragma unroll
        for (int r = 1; r < ROWS; ++r) found = row == r ? of[r] : found;
        return found;
    }
};

struct State {
    float cell[ROWS][COLUMNS];

    // From or to the thread's rows of the memory.
    __device__ __forceinline__ void load(const float* rows, int lane) {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) load_columns(rows + r * WIDTH, lane, cell[r]);
    }
    __device__ __forceinline__ void store(float* rows, int lane) const {
#pragma unroll
        for (int r = 0; r < ROWS; ++r) store_columns(rows + r * WIDTH, lane, cell[r]);
    }

    // S = factor * S + outer(amount, key)
    __device__ __forceinline__ void add(float factor, const Amounts& amount, const float (&key)[COLUMNS]) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) cell[r][c] = __fmaf_rn(amount.of[r], key[c], __fmul_rn(factor, cell[r][c]));
    }

    // S @ key and S @ query
    __device__ __forceinline__ Sums read(const float (&key)[COLUMNS], const float (&query)[COLUMNS]) const {
        Sums sums;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) sums.of_key[r] = sums.of_query[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                sums.of_key[r] = __fmaf_rn(cell[r][c], key[c], sums.of_key[r]);
                sums.of_query[r] = __fmaf_rn(cell[r][c], query[c], sums.of_query[r]);
            }
        return sums;
    }
};
