// The two products of attention, scores = Q K^T and values += P V, by each warp for its 16 queries.
#pragma once
#include "../gpu/include/mma.cuh"
#include "tiles.cuh"

constexpr int SCORES = KEYS / 8, VALUES = HEAD / 8;  // fragments of 16 queries and 8 columns

// Where line `line`, an even number, further on lies than the line at `address`, of a tile of `ROWS` rows.
template <int ROWS>
__device__ __forceinline__ u32 further(u32 address, int line) {
    return (address ^ line % 8 * 16) + line / 8 * (ROWS * 128);
}

// Scores of the warp's queries with the keys of a tile.
__device__ __forceinline__ void multiply_scores(float (&d)[SCORES][4], u32 queries, u32 keys) {
    const int lane = threadIdx.x % 32;
    queries += place<QUERIES>(threadIdx.x / 32 * 16 + lane % 16, lane / 16);
    keys += place<KEYS>(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int n = 0; n < SCORES; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        u32 a[4];
        ldmatrix_x4(a, further<QUERIES>(queries, 2 * k));
#pragma unroll
        for (int n = 0; n < SCORES; n += 2) {
            u32 b[4];
            ldmatrix_x4(b, further<KEYS>(keys, 2 * k) + 8 * n * 128);
            mma_m16n8k16(d[n], a, b[0], b[1]);
            mma_m16n8k16(d[n + 1], a, b[2], b[3]);
        }
    }
}

// Add the values of a tile, weighted.
__device__ __forceinline__ void multiply_values(float (&d)[VALUES][4], const u32 (&weights)[KEYS / 16][4], u32 values) {
    values += place<KEYS>(threadIdx.x % 16, threadIdx.x % 32 / 16);
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
#pragma unroll
        for (int n = 0; n < VALUES; n += 2) {
            u32 b[4];
            ldmatrix_x4_trans(b, further<KEYS>(values, n) + 16 * k * 128);
            mma_m16n8k16(d[n], weights[k], b[0], b[1]);
            mma_m16n8k16(d[n + 1], weights[k], b[2], b[3]);
        }
    }
}
