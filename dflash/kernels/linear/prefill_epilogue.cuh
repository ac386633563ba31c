// Epilogue of the prefill multiplies: outputs are stored, added or gated. The rows of unpacked weights are in the order of
// formats/fragment_rows.cuh, so a thread holds four consecutive outputs.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/add.cuh"
#include "../gpu/include/half.cuh"

#define STORE 0
#define ADD 1
#define GATED 2

// One of several matrices that are multiplied with the same tokens.
struct Output {
    u64 first;    // first unpacked row of the matrix
    u64 columns;  // columns of `out`
    u64 out;
    u64 stride;  // elements from one row of `out` to the next
};

// The matrix that a column belongs to. Must be called with ascending columns.
struct OutputCursor {
    const Output* parts;
    int n_parts, at;
    u64 next;
    Output part;

    __device__ OutputCursor(const u64* parts, int n_parts)
        : parts((const Output*)parts), n_parts(n_parts), at(-1), next(0) {}
    __device__ void move(int column) {
        while (column >= next) {
            part = parts[++at];
            next = at + 1 < n_parts ? parts[at + 1].first : ~0ull;
        }
    }
};

// Store four outputs of one token from column `column` of `out` on, or add them to it; `scale` is a power of two then.
template <int MODE_>
__device__ __forceinline__ void store_4(const Output& part, int row, int column, const float (&v)[4], float scale) {
    const size_t at = row * part.stride + column;
    const int n = (int)part.columns - column;
    float* out = (float*)part.out + at;
    if (n >= 4 && ((size_t)out & 15) == 0) {
        const float4 value = make_float4(__fmaf_rn(v[0], scale, 0.0f), __fmaf_rn(v[1], scale, 0.0f),
                                         __fmaf_rn(v[2], scale, 0.0f), __fmaf_rn(v[3], scale, 0.0f));
        if (MODE_ == ADD) {
            add_4(out, value);
        } else {
            *(float4*)out = value;
        }
        return;
    }
    UNROLL for (int e = 0; e < 4; ++e) {
        if (e < n) out[e] = __fmaf_rn(v[e], scale, MODE_ == ADD ? out[e] : 0.0f);
    }
}

__device__ __forceinline__ void store_4_halves(const Output& part, int row, int column, const u16 (&v)[4]) {
    u16* out = (u16*)part.out + row * part.stride + column;
    const int n = (int)part.columns - column;
    if (n >= 4 && ((size_t)out & 7) == 0) {
        *(uint2*)out = make_uint2(v[0] | (u32)v[1] << 16, v[2] | (u32)v[3] << 16);
        return;
    }
    UNROLL for (int e = 0; e < 4; ++e) {
        if (e < n) out[e] = v[e];
    }
}

// Store the products of 32 unpacked rows from `column` on with tokens `row` and `row + 8`: d[n][2 * r + e].
template <int MODE_>
__device__ __forceinline__ void store_block(OutputCursor& cursor, int row, int n_rows, int column, const float (*d)[4],
                                            float scale) {
    const int t = threadIdx.x % 4;
    if constexpr (MODE_ == GATED) {
        cursor.move(column);
        const int to = (column - (int)cursor.part.first) / 2 + 4 * t;
        float gates[8];
        UNROLL for (int i = 0; i < 8; ++i) gates[i] = d[i % 4][i / 4 * 2];
        activate_rn<true>(gates);
        UNROLL for (int r = 0; r < 2; ++r) {
            u16 v[4];
            UNROLL for (int q = 0; q < 4; ++q)
                v[q] = half_saturated(__fmul_rn(__fmul_rn(gates[4 * r + q], d[q][2 * r + 1]), INNER_SCALE));
            if (row + 8 * r < n_rows) store_4_halves(cursor.part, row + 8 * r, to, v);
        }
    } else {
        UNROLL for (int half = 0; half < 2; ++half) {
            cursor.move(column + 16 * half);
            const int to = column + 16 * half - (int)cursor.part.first + 4 * t;
            const float (*q)[4] = d + 2 * half;
            UNROLL for (int r = 0; r < 2; ++r) {
                const float v[4] = {q[0][2 * r], q[0][2 * r + 1], q[1][2 * r], q[1][2 * r + 1]};
                if (row + 8 * r < n_rows) store_4<MODE_>(cursor.part, row + 8 * r, to, v, scale);
            }
        }
    }
}
