// Products of packed weight tiles with tokens, both in shared memory: the multiply of a warp, for kernels that stream
// weights.
//
// Tokens are float16 rows, `stride` bytes apart: 64 more than a multiple of 128, or 32 more where Q::RUN is 4, so that the
// reads of a warp have no bank conflicts. If fewer than eight tokens exist, the last one is read again. If more exist, but
// no multiple of eight, the memory after them is read; these sums are not used. Columns past the width must be finite; their
// weights are zero.
// Formats with minima need the sums of the tokens' groups, which `sum_groups` computes: 4 * MINIMA bytes a token and tile.
// Sums are float32. NT and M determine how much is computed at a time; they change no bit of a result.
#pragma once
#include "quants.cuh"
#include "../gpu/include/clear.cuh"
#include "../gpu/include/mbarrier.cuh"
#include "../gpu/include/mma.cuh"

// Bytes between tokens, for rows of `bytes` bytes, a multiple of 128.
template <class Q>
__host__ __device__ constexpr int token_stride(int bytes) {
    return bytes + (Q::RUN == 8 ? 64 : 32);
}

// Byte offsets of the tokens of a lane's B fragments from the first column of a tile.
template <class Q, int NT>
struct TokenRows {
    int first, step;

    __device__ TokenRows(int stride, int n_tokens, int lane)
        : first(min(lane / 4, n_tokens - 1) * stride + 2 * Q::RUN * (lane % 4)), step(8 * stride) {}

    // B fragment of 32 columns: words x, y of the first mma, z, w of the second.
    __device__ uint4 fragment(const u8* x, int n, int block) const {
        const u8* from = x + first + n * step + 64 * block;
        if constexpr (Q::RUN == 8) return *(const uint4*)from;
        const uint2 low = *(const uint2*)from, high = *(const uint2*)(from + 32);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
};

// total += part times the scales of rows g (`upper`) and g + 8 (`lower`).
__device__ __forceinline__ void add_scaled(float (&total)[4], const float (&part)[4], float upper, float lower) {
    total[0] = __fmaf_rn(upper, part[0], total[0]);
    total[1] = __fmaf_rn(upper, part[1], total[1]);
    total[2] = __fmaf_rn(lower, part[2], total[2]);
    total[3] = __fmaf_rn(lower, part[3], total[3]);
}

// Sums of the groups of a tile's columns, divided by 4, as float16 and its rounding error. Layout of a token: for each t,
// groups MINIMA / 4 * t and following, first the rounded sums, then the errors.

// d += the group sums of 32 columns of eight tokens, number `block` of a tile; `b` is their B fragment. The A fragment has
// ones (times 1 / 4) in row r for the columns of group r.
template <class Q>
__device__ __forceinline__ void add_group(float (&d)[4], int block, const uint4& b, int lane) {
    static_assert(Q::MINIMA == 0 || Q::RUN == 8,
                  "formats with minima must have RUN 8, so that lanes t / 2 share a group of 16");
    const int g = lane / 4, t = lane % 4, group = Q::MINIMA == 8 ? block : 2 * block + t / 2;
    const u32 upper = g == group ? 0x34003400u : 0u, lower = g + 8 == group ? 0x34003400u : 0u;
    const u32 a[4] = {upper, lower, upper, lower};
    mma_m16n8k16(d, a, b.x, b.y);
    mma_m16n8k16(d, a, b.z, b.w);
}

// Store the group sums of token tile `n`.
template <class Q>
__device__ __forceinline__ void store_groups(const float (&d)[4], int n, int lane, u8* sums) {
    constexpr int EACH = Q::MINIMA / 4;
    const int g = lane / 4, t = lane % 4;
    UNROLL for (int e = 0; e < EACH; ++e) {
        const int group = g + e / 2 * 8;
        u16* to = (u16*)(sums + (8 * n + 2 * t + e % 2) * 4 * Q::MINIMA + group / EACH * Q::MINIMA);
        const u16 high = half_saturated(d[e]);
        to[group % EACH] = high;
        to[EACH + group % EACH] = half_saturated(__fsub_rn(d[e], to_float(high)));
    }
}

// The group sums of all tokens. Multiplies of one token tile alternate between CHAINS accumulators, so that several chains
// run side by side; a group has all its columns in one of them.
template <class Q, int NT>
__device__ __forceinline__ void sum_groups(const u8* x, const TokenRows<Q, NT>& rows, int lane, u8* sums) {
    constexpr int CHAINS = NT <= 2 ? 2 : 1;
    float d[NT][CHAINS][4];
    clear(d);
// With NT 3 full unrolling would exceed the registers.
#pragma unroll(NT == 3 ? 2 : 8)
    for (int j = 0; j < Q::TILE_K / 32; ++j) {
        UNROLL for (int n = 0; n < NT; ++n) add_group<Q>(d[n][j % CHAINS], j, rows.fragment(x, n, j), lane);
    }
    UNROLL for (int n = 0; n < NT; ++n) {
        UNROLL for (int c = 1; c < CHAINS; ++c) {
            UNROLL for (int e = 0; e < 4; ++e) d[n][0][e] = __fadd_rn(d[n][0][e], d[n][c][e]);
        }
        store_groups<Q>(d[n][0], n, lane, sums);
    }
}

// total += the minima of a tile times the sums of its groups.
template <class Q, int NT>
__device__ __forceinline__ void add_minima(const u8* tile, const u8* sums, int lane, float (&total)[NT][4]) {
    constexpr int WORDS = Q::MINIMA / 8;
    const int g = lane / 4, t = lane % 4;
    u32 upper[WORDS], lower[WORDS];
    Q::minima(tile, g, t, upper);
    Q::minima(tile, g + 8, t, lower);
    const float upper_scale = __fmul_rn(Q::minimum_scale(tile, g), 4.0f);
    const float lower_scale = __fmul_rn(Q::minimum_scale(tile, g + 8), 4.0f);
    const u32 a[4] = {upper[0], lower[0], upper[WORDS - 1], lower[WORDS - 1]};
    UNROLL for (int n = 0; n < NT; ++n) {
        const u8* from = sums + (8 * n + g) * 4 * Q::MINIMA + t * Q::MINIMA;
        float d[4];
        clear(d);
        if constexpr (WORDS == 1) {
            const uint2 b = *(const uint2*)from;
            mma_m16n8k16(d, a, b.x, b.y);
        } else {
            const uint4 b = *(const uint4*)from;
            mma_m16n8k16(d, a, b.x, b.y);
            mma_m16n8k16(d, a, b.z, b.w);
        }
        add_scaled(total[n], d, upper_scale, lower_scale);
    }
}

// Factor of the sums of a row of a tile.
template <class Q>
__device__ __forceinline__ float row_scale(const u8* tile, int row) {
    if constexpr (Q::GROUP == 16) {
        return Q::row_scale(tile, row);
    } else {
        return Q::scale(tile, row, 0);
    }
}

// total += M tiles, one below the other, times 8 * NT tokens. The sums of the groups must be ready at the end of phase
// `parity` of barrier `summed`. Lane 4 * g + t holds for tile m and token tile n: rows g (elements 0, 1) and g + 8 (2, 3) of
// tokens 2 * t and 2 * t + 1.
template <class Q, int M, int NT>
__device__ __forceinline__ void multiply_tile(const u8* const (&tile)[M], const u8* x, const TokenRows<Q, NT>& rows,
                                              const u8* sums, u32 summed, u32 parity, int lane, float (&total)[M][NT][4]) {
    const int g = lane / 4;
    float part[M][NT][4];
    clear(part);
    typename Q::Scales scales[M];
    UNROLL for (int m = 0; m < M; ++m) scales[m] = typename Q::Scales(tile[m], lane);
    UNROLL for (int j = 0; j < Q::TILE_K / 32; ++j) {
        u32 a[M][8];
        UNROLL for (int m = 0; m < M; ++m) warp_fragment<Q>(tile[m], scales[m], j, lane, a[m]);
        UNROLL for (int n = 0; n < NT; ++n) {
            const uint4 b = rows.fragment(x, n, j);
            UNROLL for (int m = 0; m < M; ++m) {
                float d[4];
                clear(d);
                if constexpr (Q::GROUP == 16) {
                    mma_m16n8k16(d, a[m], b.x, b.y);
                    add_scaled(part[m][n], d, scales[m].of(0, 2 * j), scales[m].of(1, 2 * j));
                    clear(d);
                    mma_m16n8k16(d, a[m] + 4, b.z, b.w);
                    add_scaled(part[m][n], d, scales[m].of(0, 2 * j + 1), scales[m].of(1, 2 * j + 1));
                } else if constexpr (Q::GROUP == 32) {
                    mma_m16n8k16(d, a[m], b.x, b.y);
                    mma_m16n8k16(d, a[m] + 4, b.z, b.w);
                    add_scaled(total[m][n], d, scales[m].of(0, j), scales[m].of(1, j));
                } else {
                    mma_m16n8k16(part[m][n], a[m], b.x, b.y);
                    mma_m16n8k16(part[m][n], a[m] + 4, b.z, b.w);
                }
            }
        }
    }
    if constexpr (Q::MINIMA > 0) mbarrier_wait(summed, parity);
    UNROLL for (int m = 0; m < M; ++m) {
        if constexpr (Q::GROUP != 32) {
            const float upper = row_scale<Q>(tile[m], g), lower = row_scale<Q>(tile[m], g + 8);
            UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[m][n], part[m][n], upper, lower);
        }
        if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile[m], sums, lane, total[m]);
    }
}
