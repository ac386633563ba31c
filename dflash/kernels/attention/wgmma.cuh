// Both multiplies of attention, scores = Q K^T and values += P V, by a warpgroup for its 64 queries (wgmma, sm_90a only).
// They are asynchronous until `wgmma_wait_group`.
//
// Macros: those of tiles.cuh.
#pragma once
#include "../gpu/include/wgmma.cuh"

#define VALUE_COLUMNS ((HEAD_DIM + 63) / 64 * 64)
#include "tiles.cuh"

static_assert(TILE_KV == 64, "wgmma_scores multiplies 64 queries with 64 keys");

// Start d = scores of the warpgroup's queries with the keys of a tile.
__device__ __forceinline__ void wgmma_scores(float (&d)[SCORES][4], u32 queries, u32 keys) {
    UNROLL for (int k = 0; k < HEAD_DIM / 16; ++k) {
        const u32 inside = k % 4 * 32;
        wgmma_ss(d, wgmma_descriptor(queries + k / 4 * (64 * 128) + inside, 0),
                 wgmma_descriptor(keys + k / 4 * (TILE_KV * 128) + inside, 0), k > 0);
    }
    wgmma_commit_group();
}

// Start d += weights @ values of a tile.
__device__ __forceinline__ void wgmma_values(float (&d)[VALUES][4], const u32 (&weights)[TILE_KV / 16][4], u32 values) {
    UNROLL for (int k = 0; k < TILE_KV / 16; ++k) {
        const u32 own = values + k * 2048;
        UNROLL for (int c = 0; c + 1 < COLUMNS; c += 2) {
            wgmma_rs_trans_b_128(d + 8 * c, weights[k], wgmma_descriptor(own + c * (TILE_KV * 128), TILE_KV * 128));
        }
        if (COLUMNS % 2) {
            constexpr int C = COLUMNS - 1;
            wgmma_rs_trans_b_64(d + 8 * C, weights[k], wgmma_descriptor(own + C * (TILE_KV * 128), TILE_KV * 128));
        }
    }
    wgmma_commit_group();
}
