// The memory of a head in the registers of a block: LANES threads side by side hold ROWS value rows, each COLUMNS of the key
// columns of both. Every element is computed by one sequence of operations, whoever asks for it.
#pragma once

constexpr int COLUMNS = WIDTH / LANES, VECTOR = COLUMNS % 4 ? 2 : 4, APART = LANES / ROWS;
static_assert(WIDTH % 16 == 0 && LANES == 8, "eight threads have a row of keys, two or four columns at a time");
static_assert(ROWS == 2 || ROWS == 4, "APART lanes side by side name a row");

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

// A number for each of a thread's rows, of which every lane has its share.
struct Sums {
    float of[ROWS];

    // Over all lanes, of the row that `row_of(lane)` names. Each step halves what a lane still sums.
    __device__ __forceinline__ float reduce(int lane) const {
        const bool upper = lane & 4, second = lane & 2;
        float sum[ROWS / 2];
#pragma unroll
        for (int r = 0; r < ROWS / 2; ++r) {
            const float give = upper ? of[r] : of[r + ROWS / 2];
            sum[r] = __fadd_rn(upper ? of[r + ROWS / 2] : of[r], __shfl_xor_sync(~0u, give, 4));
        }
        if constexpr (ROWS == 4) {
            const float give = second ? sum[0] : sum[ROWS / 2 - 1];
            sum[0] = __fadd_rn(second ? sum[ROWS / 2 - 1] : sum[0], __shfl_xor_sync(~0u, give, 2));
        } else {
            sum[0] = __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], 2));
        }
        return __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], 1));
    }
};

__device__ __forceinline__ int row_of(int lane) { return lane / APART; }

// What the rows get of a key.
struct Amounts {
    float of[ROWS];

    // Of each row, what the lanes have that `row_of` names for it.
    __device__ __forceinline__ void spread(float mine, int lane) {
        if constexpr (ROWS == 2) {
            const float other = __shfl_xor_sync(~0u, mine, 4);
            of[0] = lane & 4 ? other : mine, of[1] = lane & 4 ? mine : other;
        } else {
#pragma unroll
            for (int r = 0; r < ROWS; ++r) of[r] = __shfl_sync(~0u, mine, r * APART, LANES);
        }
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

    // S = S + outer(amount, key)
    __device__ __forceinline__ void add(const Amounts& amount, const float (&key)[COLUMNS]) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) cell[r][c] = __fmaf_rn(amount.of[r], key[c], cell[r][c]);
    }
    __device__ __forceinline__ void scale(float factor) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) cell[r][c] = __fmul_rn(factor, cell[r][c]);
    }

    // S @ vector
    __device__ __forceinline__ Sums read(const float (&vector)[COLUMNS]) const {
        Sums even, odd;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) even.of[r] = odd.of[r] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2)
#pragma unroll
            for (int r = 0; r < ROWS; ++r) {
                even.of[r] = __fmaf_rn(cell[r][c], vector[c], even.of[r]);
                odd.of[r] = __fmaf_rn(cell[r][c + 1], vector[c + 1], odd.of[r]);
            }
#pragma unroll
        for (int r = 0; r < ROWS; ++r) even.of[r] = __fadd_rn(even.of[r], odd.of[r]);
        return even;
    }
};
