// Tokens (float16) in the order in which decode_wide.cu multiplies them.
//
// For each 256 columns, four blocks of 64 columns, a row of 128 bytes a token with the swizzle of wgmma. Words of 32 columns
// are in the order of the weights' fragments (quants.cuh). Then, for formats with minima, the sums of the tokens' groups
// (mma_tile.cuh); for formats with 8 minima and one scale a tile, for each eight tokens, the rounded sums of the groups as an
// operand of wgmma, then the errors. Macros: those of schedule.cuh.
#pragma once
#include "../../formats/mma_tile.cuh"
#include "schedule.cuh"

constexpr int BLOCK_BYTES = TOKENS * 128;  // 64 columns of all tokens

// Whether the minima of a format are multiplied by wgmma.
template <class Q>
constexpr bool MINIMA_AS_OPERAND = Q::MINIMA == 8 && Q::GROUP == Q::TILE_K;

// Store the sums of 8 groups of token tile `n`, as `store_groups`, for wgmma.
__device__ __forceinline__ void store_operand(const float (&d)[4], int n, int lane, u8* sums) {
    const int g = lane / 4, t = lane % 4;
    UNROLL for (int e = 0; e < 2; ++e) {
        u16* to = (u16*)(sums + 256 * n + 16 * (2 * t + e)) + g;
        const u16 high = half_saturated(d[e]);
        to[0] = high;
        to[64] = half_saturated(__fsub_rn(d[e], to_float(high)));
    }
}

// Eight values of lane t of 32 columns, as its B fragments have them.
template <class Q>
__device__ __forceinline__ uint4 load_tokens(const u16* columns, int t) {
    if constexpr (Q::RUN == 8) return *(const uint4*)(columns + 8 * t);
    const uint2 low = *(const uint2*)(columns + 4 * t), high = *(const uint2*)(columns + 4 * t + 16);
    return make_uint4(low.x, low.y, high.x, high.y);
}

// Arrange 256 columns, number `unit`, of eight tokens, number `n`, for format Q; by a warp. Tokens past the last one repeat
// it.
template <class Q>
__device__ __forceinline__ void arrange(const u16* x, int n_tokens, int width, int unit, int n, u8* units, int lane) {
    const int g = lane / 4, t = lane % 4;
    const u16* columns = x + (size_t)min(8 * n + g, n_tokens - 1) * width + unit * UNIT_COLUMNS;
    u8* to = units + (size_t)unit * (4 * BLOCK_BYTES + TOKENS * 4 * Q::MINIMA);
    uint4 v[8];
    UNROLL for (int j = 0; j < 8; ++j) v[j] = load_tokens<Q>(columns + 32 * j, t);
    float d[4];
    clear(d);
    UNROLL for (int j = 0; j < 8; ++j) {
        u8* row = to + j / 2 * BLOCK_BYTES + (8 * n + g) * 128 + 4 * t;
        const u32 words[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
        UNROLL for (int w = 0; w < 4; ++w) *(u32*)(row + ((4 * (j % 2) + w) ^ g) * 16) = words[w];
        if constexpr (Q::MINIMA > 0) add_group<Q>(d, j, v[j], lane);
    }
    if constexpr (MINIMA_AS_OPERAND<Q>) {
        store_operand(d, n, lane, to + 4 * BLOCK_BYTES);
    } else if constexpr (Q::MINIMA > 0) {
        store_groups<Q>(d, n, lane, to + 4 * BLOCK_BYTES);
    }
}
