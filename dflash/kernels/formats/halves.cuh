// Unpack the weights of a tile to consecutive float16, by a whole warp: lane 4 * g + t handles rows g and g + 8.
#pragma once
#include "values.cuh"

// Index of the eight consecutive weights, of the 32 of a block, that lane t returns.
template <class Q>
__device__ __forceinline__ int lane_octet(int t) {
    return Q::RUN == 8 ? t : t % 2 * 2 + t / 2;
}

// The lane's eight weights of 32-block `block` of row `row`. Where `tile_values` gives a lane four weights of each half of
// the block (RUN 4), even and odd lanes exchange them: an even lane receives those of the first 16, an odd lane those of the
// second 16.
template <class Q>
__device__ __forceinline__ uint4 eight_halves(const u8* tile, int row, int block, int t) {
    float v[8];
    tile_values<Q>(tile, row, block, t, v);
    const u32 p[4] = {to_half2(v[0], v[1]), to_half2(v[2], v[3]), to_half2(v[4], v[5]), to_half2(v[6], v[7])};
    if (Q::RUN == 8) return make_uint4(p[0], p[1], p[2], p[3]);
    const u32 x = __shfl_xor_sync(~0u, t % 2 ? p[0] : p[2], 1), y = __shfl_xor_sync(~0u, t % 2 ? p[1] : p[3], 1);
    return t % 2 ? make_uint4(x, y, p[2], p[3]) : make_uint4(p[0], p[1], x, y);
}
