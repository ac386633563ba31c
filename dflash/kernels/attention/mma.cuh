// Both multiplies of attention, scores = Q K^T and values += P V, by each warp for its 16 queries (mma.sync).
//
// Macros: those of tiles.cuh.
#pragma once
#include "../gpu/include/clear.cuh"
#include "../gpu/include/mma.cuh"
#include "tiles.cuh"

// Advance the address of a line by `line` lines, an even number, in a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ u32 advance(u32 address, int line) {
    return (address ^ line % 8 * 16) + line / 8 * (ROWS * 128);
}

// d = scores of the warp's queries with the keys of a tile.
__device__ __forceinline__ void mma_scores(float (&d)[SCORES][4], u32 queries, u32 keys) {
    const int lane = threadIdx.x % 32;
    queries += swizzled<TILE_Q>(threadIdx.x / 32 * 16 + lane % 16, lane / 16);
    keys += swizzled<TILE_KV>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    clear(d);
    UNROLL for (int k = 0; k < HEAD_DIM / 16; ++k) {
        u32 a[4];
        ldmatrix_x4(a, advance<TILE_Q>(queries, 2 * k));
        UNROLL for (int n = 0; n < SCORES; n += 2) {
            u32 b[4];
            ldmatrix_x4(b, advance<TILE_KV>(keys, 2 * k) + 8 * n * 128);
            mma_m16n16k16(d + n, a, b);
        }
    }
}

// d += weights @ values of a tile.
__device__ __forceinline__ void mma_values(float (&d)[VALUES][4], const u32 (&weights)[TILE_KV / 16][4], u32 values) {
    values += swizzled<TILE_KV>(threadIdx.x % 16, threadIdx.x % 32 / 16);
    UNROLL for (int k = 0; k < TILE_KV / 16; ++k) {
        UNROLL for (int n = 0; n < VALUES; n += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, advance<TILE_KV>(values, n) + 16 * k * 128);
            mma_m16n16k16(d + n, weights[k], b);
        }
    }
}
