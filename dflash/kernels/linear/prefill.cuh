// What both multiplies of a prefill share: where rows of unpacked weights lie, and where products go.
//
// A thread of a tensor core multiply holds products 8 * n + 2 * t and the next one, t = lane % 4. Rows of weights are
// placed so that what a thread holds of 16 (of 32 for a gate and its up) makes four results side by side.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"

#define STORE 0
#define ADD 1
#define GATED 2

// Of row i of a matrix, among the unpacked rows.
__device__ __forceinline__ int place(int i) { return i / 16 * 16 + i / 2 % 2 * 8 + i % 16 / 4 * 2 + i % 2; }

// Of row i of the gate (0) or of the up projection (1).
__device__ __forceinline__ int paired_place(int i, int up) { return i / 16 * 32 + i % 4 * 8 + i % 16 / 4 * 2 + up; }

// A matrix among several that are multiplied with the same tokens.
struct Part {
    u64 first;    // of its unpacked rows
    u64 columns;  // of `out`
    u64 out;
    u64 stride;   // elements from one row of `out` to the next
};

// The parts in order, and in which one the columns are that come next; they only grow.
struct Walk {
    const Part* parts;
    int n_parts, at;
    u64 next;
    Part part;

    __device__ Walk(const u64* parts, int n_parts) : parts((const Part*)parts), n_parts(n_parts), at(-1), next(0) {}
    __device__ void move(int column) {
        while (column >= next) {
            part = parts[++at];
            next = at + 1 < n_parts ? parts[at + 1].first : ~0ull;
        }
    }
};

__device__ __forceinline__ u16 gated(float gate, float up) {
    return half_saturated(__fmul_rn(__fmul_rn(silu_fast_exp(gate), up), INNER_SCALE));
}

// Four results of one token, from column `column` of `out`.
template <int END>
__device__ __forceinline__ void put(const Part& part, int row, int column, const float (&v)[4], float scale) {
    const size_t at = row * part.stride + column;
    const int n = (int)part.columns - column;
    float* out = (float*)part.out + at;
    if (n >= 4 && ((size_t)out & 15) == 0) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (END == ADD) sum = *(const float4*)out;
        *(float4*)out = make_float4(__fmaf_rn(v[0], scale, sum.x), __fmaf_rn(v[1], scale, sum.y),
                                    __fmaf_rn(v[2], scale, sum.z), __fmaf_rn(v[3], scale, sum.w));
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (e < n) out[e] = __fmaf_rn(v[e], scale, END == ADD ? out[e] : 0.0f);
    }
}

__device__ __forceinline__ void put_halves(const Part& part, int row, int column, const u16 (&v)[4]) {
    u16* out = (u16*)part.out + row * part.stride + column;
    const int n = (int)part.columns - column;
    if (n >= 4 && ((size_t)out & 7) == 0) {
        *(uint2*)out = make_uint2(v[0] | (u32)v[1] << 16, v[2] | (u32)v[3] << 16);
        return;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (e < n) out[e] = v[e];
    }
}

// The products of 32 unpacked rows from `column`, with tokens `row` and `row + 8`: d[n][2 * r + e].
template <int END>
__device__ __forceinline__ void put_block(Walk& walk, int row, int n_rows, int column, const float (*d)[4], float scale) {
    const int t = threadIdx.x % 4;
    if constexpr (END == GATED) {
        walk.move(column);
        const int to = (column - (int)walk.part.first) / 2 + 4 * t;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            u16 v[4];
#pragma unroll
            for (int q = 0; q < 4; ++q) v[q] = gated(d[q][2 * r], d[q][2 * r + 1]);
            if (row + 8 * r < n_rows) put_halves(walk.part, row + 8 * r, to, v);
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            walk.move(column + 16 * half);
            const int to = column + 16 * half - (int)walk.part.first + 4 * t;
            const float(*q)[4] = d + 2 * half;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const float v[4] = {q[0][2 * r], q[0][2 * r + 1], q[1][2 * r], q[1][2 * r + 1]};
                if (row + 8 * r < n_rows) put<END>(walk.part, row + 8 * r, to, v, scale);
            }
        }
    }
}
