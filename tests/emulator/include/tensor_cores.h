// Multiplies of tensor cores. Products are exact; the sum of an instruction is rounded once, so that mma and wgmma have equal
// bits. These are not the bits of a GPU, which aligns and truncates the products.
#pragma once
#include "ptx.h"

namespace emu {
// Element (row, column) of 16 rows and columns in the four registers of a lane; of B, of which rows are K, in two.
#define FOR_FRAGMENT(REGISTERS) \
    for (int i = 0; i < REGISTERS; ++i) \
        for (int e = 0; e < 2; ++e)

struct WarpOperands {
    u32 a[4], b[2];
    float sums[4];
};

template <int K>
inline void store_products(const float (&a)[16][K], const float (&b)[K][8], const void* const* in, void* const* out) {
    double products[16][8] = {};
    for (int row = 0; row < 16; ++row)
        for (int k = 0; k < K; ++k)
            for (int column = 0; column < 8; ++column) products[row][column] += (double)a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; ++lane)
        for (int i = 0; i < 4; ++i)
            ((float*)out[lane])[i] = (float)(products[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2] +
                                             (double)((const WarpOperands*)in[lane])->sums[i]);
}

inline void multiply_half(const void* const* in, void* const* out, unsigned) {
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; ++lane) {
        const WarpOperands& mine = *(const WarpOperands*)in[lane];
        const int g = lane / 4, t = lane % 4;
        FOR_FRAGMENT(4) a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = half_value(mine.a[i] >> 16 * e);
        FOR_FRAGMENT(2) b[2 * t + e + 8 * i][g] = half_value(mine.b[i] >> 16 * e);
    }
    store_products(a, b, in, out);
}

inline void multiply_tf32(const void* const* in, void* const* out, unsigned) {
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; ++lane) {
        const WarpOperands& mine = *(const WarpOperands*)in[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][t + 4 * (i / 2)] = bits_as<float>(mine.a[i] & 0xffffe000u);
        for (int i = 0; i < 2; ++i) b[t + 4 * i][g] = bits_as<float>(mine.b[i] & 0xffffe000u);
    }
    store_products(a, b, in, out);
}

inline void mma(const char* what, Together multiply, float* const (&sums)[4], const WarpOperands& mine) {
    float results[4];
    emu_warp(~0u, what, &mine, results, multiply);
    for (int i = 0; i < 4; ++i) *sums[i] = results[i];
}
inline void ptx_mma_m16n8k16(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma("mma.m16n8k16", multiply_half, {&d0, &d1, &d2, &d3}, {{a0, a1, a2, a3}, {b0, b1}, {d0, d1, d2, d3}});
}
inline void ptx_mma_m16n8k8_tf32(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    mma("mma.m16n8k8", multiply_tf32, {&d0, &d1, &d2, &d3}, {{a0, a1, a2, a3}, {b0, b1}, {d0, d1, d2, d3}});
}

// Matrices of 8 x 8 float16: a lane holds two neighbours of a row in a word.
struct Matrix {
    u16 at[8][8];
    u32 pair(int lane, bool transposed) const {
        const int row = lane / 4, column = 2 * (lane % 4);
        return transposed ? at[column][row] | (u32)at[column + 1][row] << 16 : at[row][column] | (u32)at[row][column + 1] << 16;
    }
};

template <bool TRANSPOSED>
inline void ptx_ldmatrix_x4(u32& a, u32& b, u32& c, u32& d, u32 address) {
    u32 words[4];
    emu_warp(~0u, "ldmatrix", &address, words, [](const void* const* in, void* const* out, unsigned) {
        for (int i = 0; i < 4; ++i) {
            Matrix matrix;
            for (int row = 0; row < 8; ++row) {
                const u32 from = *(const u32*)in[8 * i + row];
                check_aligned(from, 16, "ldmatrix: misaligned");
                memcpy(matrix.at[row], emu_at(from), 16);
            }
            for (int lane = 0; lane < 32; ++lane) ((u32*)out[lane])[i] = matrix.pair(lane, TRANSPOSED);
        }
    });
    a = words[0], b = words[1], c = words[2], d = words[3];
}

inline void ptx_movmatrix(u32& d, u32 word) {
    emu_warp(~0u, "movmatrix", &word, &d, [](const void* const* in, void* const* out, unsigned) {
        Matrix matrix;
        for (int lane = 0; lane < 32; ++lane)
            for (int e = 0; e < 2; ++e) matrix.at[lane / 4][2 * (lane % 4) + e] = *(const u32*)in[lane] >> 16 * e;
        for (int lane = 0; lane < 32; ++lane) *(u32*)out[lane] = matrix.pair(lane, true);
    });
}

// Multiplies of a warpgroup: 64 rows, `columns` columns, 16 of K.
struct WarpgroupOperands {
    float* sums;
    u32 a[4];
    u64 a_descriptor, b_descriptor;
    int columns;
    bool accumulate, a_in_registers, b_transposed;
};

// An element of an operand in shared memory, with the 128-byte swizzle or none; see the matrix descriptor in the PTX manual.
inline float element(u64 descriptor, int row, int k, bool transposed) {
    const u32 start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4;
    const u32 stride = (descriptor >> 32 & 0x3fff) << 4;
    if (descriptor >> 62 == 0 && !transposed)
        return half_value(*(const u16*)emu_at(start + row / 8 * stride + row % 8 * 16 + k / 8 * leading + k % 8 * 2));
    if (descriptor >> 62 != 1) emu_fail("wgmma: a swizzle other than that of 128 bytes");
    const u32 plain = transposed ? start + row / 64 * leading + k / 8 * stride + k % 8 * 128 + row % 64 * 2
                                 : start + row / 8 * stride + row % 8 * 128 + 2 * k;
    return half_value(*(const u16*)emu_at(swizzle(plain)));
}

inline void multiply_warpgroup(const void* const* in, void* const*, unsigned) {
    static float a[64][16], b[16][256];
    const WarpgroupOperands& first = *(const WarpgroupOperands*)in[0];
    for (int k = 0; k < 16; ++k)
        for (int column = 0; column < first.columns; ++column) b[k][column] = element(first.b_descriptor, column, k, first.b_transposed);
    for (int thread = 0; thread < 128; ++thread) {
        const WarpgroupOperands& mine = *(const WarpgroupOperands*)in[thread];
        if (mine.b_descriptor != first.b_descriptor || mine.columns != first.columns || mine.accumulate != first.accumulate)
            emu_fail("wgmma: operands of the threads differ");
        const int g = thread / 32 * 16 + thread % 32 / 4, t = thread % 4;
        if (first.a_in_registers) FOR_FRAGMENT(4) a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = half_value(mine.a[i] >> 16 * e);
    }
    if (!first.a_in_registers)
        for (int row = 0; row < 64; ++row)
            for (int k = 0; k < 16; ++k) a[row][k] = element(first.a_descriptor, row, k, false);
    for (int row = 0; row < 64; ++row) {
        double products[256] = {};
        for (int k = 0; k < 16; ++k)
            for (int column = 0; column < first.columns; ++column) products[column] += (double)(a[row][k] * b[k][column]);
        for (int column = 0; column < first.columns; ++column) {
            const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            float& sum = ((const WarpgroupOperands*)in[thread])->sums[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
            sum = (float)(products[column] + (first.accumulate ? (double)sum : 0.0));
        }
    }
}

// The same for int8 and int32: both operands in shared memory, 32 of K.
inline void multiply_bytes(const void* const* in, void* const*, unsigned) {
    static signed char a[64][32], b[256][32];
    const WarpgroupOperands& first = *(const WarpgroupOperands*)in[0];
    const auto load = [](u64 descriptor, int rows, signed char (*to)[32]) {
        const u32 start = (descriptor & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
        if (descriptor >> 62 != 1) emu_fail("wgmma: a swizzle other than that of 128 bytes");
        for (int row = 0; row < rows; ++row)
            for (int k = 0; k < 32; ++k) to[row][k] = *(const signed char*)emu_at(swizzle(start + row / 8 * stride + row % 8 * 128 + k));
    };
    load(first.a_descriptor, 64, a), load(first.b_descriptor, first.columns, b);
    for (int row = 0; row < 64; ++row) {
        for (int column = 0; column < first.columns; ++column) {
            const int thread = row / 16 * 32 + row % 8 * 4 + column % 8 / 2;
            float& place = ((const WarpgroupOperands*)in[thread])->sums[column / 8 * 4 + row % 16 / 8 * 2 + column % 2];
            int sum = first.accumulate ? bits_as<int>(place) : 0;
            for (int k = 0; k < 32; ++k) sum += a[row][k] * b[column][k];
            place = bits_as<float>(sum);
        }
    }
}

template <class Sum>
inline void wgmma(Sum* const* sums, int n, WarpgroupOperands mine, Together multiply) {
    float values[128];
    for (int i = 0; i < n; ++i) values[i] = bits_as<float>(*sums[i]);
    mine.sums = values, mine.columns = 2 * n;
    emu_warpgroup(&mine, multiply);
    for (int i = 0; i < n; ++i) *sums[i] = bits_as<Sum>(values[i]);
}
inline void ptx_wgmma_ss_bytes(int* const* sums, int n, u64 a, u64 b, int accumulate) {
    wgmma(sums, n, {nullptr, {}, a, b, 0, accumulate != 0, false, false}, multiply_bytes);
}
inline void ptx_wgmma_ss(float* const* sums, int n, u64 a, u64 b, int accumulate) {
    wgmma(sums, n, {nullptr, {}, a, b, 0, accumulate != 0, false, false}, multiply_warpgroup);
}
inline void ptx_wgmma_rs(float* const* sums, int n, u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int accumulate) {
    wgmma(sums, n, {nullptr, {a0, a1, a2, a3}, 0, b, 0, accumulate != 0, true, false}, multiply_warpgroup);
}
inline void ptx_wgmma_rs_transposed(float* const* sums, int n, u32 a0, u32 a1, u32 a2, u32 a3, u64 b) {
    wgmma(sums, n, {nullptr, {a0, a1, a2, a3}, 0, b, 0, true, true, true}, multiply_warpgroup);
}
#undef FOR_FRAGMENT
}  // namespace emu
