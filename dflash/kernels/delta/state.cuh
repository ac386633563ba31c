// The memory of SHARE heads, which read one key, in the registers of a block: LANES threads side by side hold a value row of each
// head, each COLUMNS of its key columns. Every element is computed by one sequence of operations, whoever asks for it.
#pragma once

constexpr int COLUMNS = WIDTH / LANES, VECTOR = COLUMNS % 4 ? 2 : 4, PADDED = SHARE == 3 ? 4 : SHARE;
static_assert(WIDTH % (2 * LANES) == 0 && (LANES == 8 || LANES == 16), "a thread has two or four columns of a row at a time");
static_assert(SHARE >= 1 && SHARE <= 4, "a thread has rows of one to four heads");

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

// Over N threads side by side, in each of them; `lanes` of the warp take part.
template <int N>
__device__ __forceinline__ float sum_over(float x, u32 lanes = ~0u) {
#pragma unroll
    for (int i = N / 2; i; i /= 2) x = __fadd_rn(x, __shfl_xor_sync(lanes, x, i));
    return x;
}

// Of a number that all threads have, as the compiler then knows: it need not ask before each shuffle who is there.
__device__ __forceinline__ int uniform(int x) { return __reduce_max_sync(~0u, x); }

// Without a branch, across which nothing would be moved.
__device__ __forceinline__ void store_if(bool wanted, float* global, float x) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.global.f32 [%1], %2; }" ::"r"((u32)wanted), "l"(global), "f"(x)
                 : "memory");
}

__device__ __forceinline__ void store_if(bool wanted, u32 shared, float x) {
    asm volatile("{ .reg .pred p; setp.ne.u32 p, %0, 0; @p st.shared.f32 [%1], %2; }" ::"r"((u32)wanted), "r"(shared), "f"(x)
                 : "memory");
}

// The head whose number a lane has where each has one.
__device__ __forceinline__ int head_of(int lane) { return lane * PADDED / LANES; }

// As `sum_over` the lanes of each head's number, but a lane gets only that of `head_of` it: while there are several, each step halves
// what a lane still sums.
__device__ __forceinline__ float share_of_sums(const float (&x)[SHARE], int lane) {
    float sum[PADDED];
#pragma unroll
    for (int h = 0; h < PADDED; ++h) sum[h] = h < SHARE ? x[h] : 0.0f;
    int reach = LANES / 2;
#pragma unroll
    for (int n = PADDED / 2; n; n /= 2, reach /= 2) {
        const bool upper = lane & reach;
#pragma unroll
        for (int h = 0; h < n; ++h) {
            const float give = upper ? sum[h] : sum[h + n];
            sum[h] = __fadd_rn(upper ? sum[h + n] : sum[h], __shfl_xor_sync(~0u, give, reach));
        }
    }
#pragma unroll
    for (; reach; reach /= 2) sum[0] = __fadd_rn(sum[0], __shfl_xor_sync(~0u, sum[0], reach));
    return sum[0];
}

__device__ __forceinline__ float pick(const float (&of)[SHARE], int head) {
    float found = of[0];
#pragma unroll
    for (int h = 1; h < SHARE; ++h) found = head == h ? of[h] : found;
    return found;
}

struct State {
    float cell[SHARE][COLUMNS];

    // From or to the thread's rows of the memory, which lie `apart`.
    __device__ __forceinline__ void load(const float* rows, size_t apart, int lane) {
#pragma unroll
        for (int h = 0; h < SHARE; ++h) load_columns(rows + h * apart, lane, cell[h]);
    }
    __device__ __forceinline__ void store(float* rows, size_t apart, int lane) const {
#pragma unroll
        for (int h = 0; h < SHARE; ++h) store_columns(rows + h * apart, lane, cell[h]);
    }

    // S = factor * S + outer(amount, key)
    __device__ __forceinline__ void add(const float (&factor)[SHARE], const float (&amount)[SHARE],
                                        const float (&key)[COLUMNS]) {
#pragma unroll
        for (int h = 0; h < SHARE; ++h)
#pragma unroll
            for (int c = 0; c < COLUMNS; ++c) cell[h][c] = __fmaf_rn(amount[h], key[c], __fmul_rn(factor[h], cell[h][c]));
    }

    // The lane's part of S @ x: even and odd columns apart, so that fewer sums wait for each other.
    __device__ __forceinline__ void read(const float (&x)[COLUMNS], float (&sum)[SHARE]) const {
        float even[SHARE], odd[SHARE];
#pragma unroll
        for (int h = 0; h < SHARE; ++h) even[h] = odd[h] = 0.0f;
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 2)
#pragma unroll
            for (int h = 0; h < SHARE; ++h) {
                even[h] = __fmaf_rn(cell[h][c], x[c], even[h]);
                odd[h] = __fmaf_rn(cell[h][c + 1], x[c + 1], odd[h]);
            }
#pragma unroll
        for (int h = 0; h < SHARE; ++h) sum[h] = __fadd_rn(even[h], odd[h]);
    }
};
