// The two products of attention, scores = Q K^T and values += P V, by groups of four warps for 64 queries: they go on while the
// warps do other things, until `wait_products`.
#pragma once
#include "../gpu/include/wgmma.cuh"
#include "tiles.cuh"

static_assert(KEYS == 64, "a product of scores is made of 64 queries and 64 keys");

constexpr int SCORES = KEYS / 8, VALUES = 8 * COLUMNS;  // fragments of 16 queries and 8 columns

// Begin: scores of the group's queries with the keys of a tile.
__device__ __forceinline__ void begin_scores(float (&d)[SCORES][4], u32 queries, u32 keys) {
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        const u32 inside = k % 4 * 32;
        wgmma_ss(d, wgmma_descriptor(queries + k / 4 * (64 * 128) + inside, 0),
                      wgmma_descriptor(keys + k / 4 * (KEYS * 128) + inside, 0), k > 0);
    }
    wgmma_commit_group();
}

// Begin: add the values of a tile, weighted.
__device__ __forceinline__ void begin_values(float (&d)[VALUES][4], const u32 (&weights)[KEYS / 16][4], u32 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        const u32 own = values + k * 2048;
#pragma unroll
        for (int c = 0; c + 1 < COLUMNS; c += 2) {
            wgmma_rs_trans_b_128(d + 8 * c, weights[k], wgmma_descriptor(own + c * (KEYS * 128), KEYS * 128));
        }
        if (COLUMNS % 2) {
            constexpr int C = COLUMNS - 1;
            wgmma_rs_trans_b_64(d + 8 * C, weights[k], wgmma_descriptor(own + C * (KEYS * 128), KEYS * 128));
        }
    }
    wgmma_commit_group();
}
