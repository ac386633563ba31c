// Dequantised weights of a tile as float32, row by row.
#pragma once
#include "quants.cuh"

__device__ __forceinline__ float half_of(u32 pair, int odd) { return to_float((u16)(pair >> 16 * odd)); }

// Minimum of a group of a row, without `minimum_scale`.
template <class Q>
__device__ __forceinline__ float minimum_of(const u8* tile, int row, int group) {
    u32 m[Q::MINIMA / 8 + 1];
    Q::minima(tile, row, group / (Q::MINIMA / 4), m);
    return half_of(m[Q::MINIMA == 16 ? group % 4 / 2 : 0], group % 2);
}

// Eight weights of row `row` (0 to 15) of a tile: those of 32-block `block` at lane_weight<Q::RUN>(t, j), for j from 0 to 7.
template <class Q>
__device__ __forceinline__ void tile_values(const u8* tile, int row, int block, int t, float (&values)[8]) {
    u32 a[8];
    Q::fragment(tile, block, row % 8 * 4 + t, a);
    UNROLL for (int j = 0; j < 8; ++j) {
        const int group = Q::GROUP == 16 ? 2 * block + j / 4 : Q::GROUP == 32 ? block : 0;
        const u32 pair = row < 8 ? a[j / 2 * 2] : a[j / 2 * 2 + 1];
        values[j] = __fmul_rn(half_of(pair, j % 2), Q::scale(tile, row, group));
    }
    if constexpr (Q::MINIMA > 0) {
        const float minimum = minimum_of<Q>(tile, row, Q::MINIMA == 16 ? 2 * block + t / 2 : block);
        const float shift = __fmul_rn(minimum, Q::minimum_scale(tile, row));
        UNROLL for (int j = 0; j < 8; ++j) values[j] = __fadd_rn(values[j], shift);
    }
}

// F32 tiles hold all bits of a weight, which `fragment` would round.
template <>
__device__ __forceinline__ void tile_values<F32>(const u8* tile, int row, int block, int t, float (&values)[8]) {
    UNROLL for (int i = 0; i < 2; ++i) {
        const float4 w = ((const float4*)tile)[(block * 4 + row / 8 * 2 + i) * 32 + row % 8 * 4 + t];
        values[4 * i] = w.x, values[4 * i + 1] = w.y, values[4 * i + 2] = w.z, values[4 * i + 3] = w.w;
    }
}
