// GGUF formats in the layout of tensor core fragments: the blocks of a file, and the layout of a tile in memory.
//
// A tile is 16 rows by TILE_K weights in the bytes that the file spends on them: planes of codes, then the scales of its
// rows. Codes lie in the order of the A fragments of m16n8k16. Of each 32 weights of a row, lane 4 * g + t holds eight, of
// row g and of row g + 8, as four pairs p: weights 8 * t + 2 * p and the next one, so that the lane needs 16 bytes of a
// token; where every 16 have a scale of their own that sums are multiplied with (RUN 4), weights
// 16 * (p / 2) + 4 * t + 2 * (p % 2). The even weight of a pair stands in the lower 16 bits of a word and the odd one at
// the same place in the upper, so a shift and a mask make two codes.
//
//     plane      bytes of 32 x 16 weights      word of lane          place of pair p of row g + 8 * r, even weight
//     4 bits     256                           [32-block][lane][r]   4 * p
//     2 bits     128                           [32-block][lane]      8 * r + 2 * p; above four bits 8 * r + 2 * (p / 2) + 4 * (p % 2)
//     1 bit      64                            [64-block][lane]      8 * (32-block % 2) + 4 * r + p
//     8 bits     512                           [32-block][lane][r]   two words a row, of two pairs; the even weights first
//
// A format is a struct:
//     TILE_K, BYTES     weights of a row in a tile, bytes of a tile
//     BLOCK, BLOCK_BYTES  of the file
//     LOW, HIGH         bits of the two planes
//     RUN               how many weights of a lane follow each other: 8 or 4
//     GROUP             weights of a row whose sum is scaled in float32: 16, 32 or the whole tile
//     MINIMA            minima of a row of a tile: 0, 8 or 16; they multiply the sums of the tokens' groups
//     Scales            a lane's share of the scales of a tile, as a whole warp makes it; `of(r, group)` is the factor of a
//                       group of row g + 8 * r
//     fragment          A fragments of 32 weights: exact integers, over UNIT unless the format is of plain numbers, times the
//                       sub-block's own scale where that is exact
//     SHARED_SCALES     whether a whole warp has those faster: `raw` times `Scales::multiply_codes`, the blocks in order
//     scale             float32 factor of a group, for a lane alone
//     minima            of groups MINIMA / 4 * t and following, pairs of halves; times `minimum_scale`
//     pack_row          the scales of one row, from the file's blocks to the tile
//     code              the code of a weight, for packing
#pragma once
#include "small_quants.cuh"
#include "k_quants.cuh"

// Plain numbers: eight of row g, then eight of row g + 8, as halves or as two times four float32.
template <int SIZE>
struct Plain {
    static constexpr int TILE_K = 64, GROUP = 64, BLOCK = 1, BLOCK_BYTES = SIZE, LOW = 8 * SIZE, HIGH = 0, RUN = 8;
    static constexpr int BYTES = 16 * 64 * SIZE, MINIMA = 0;
    static constexpr bool SHARED_SCALES = false;
    using Scales = NoScales;
    __device__ static float scale(const u8*, int, int) { return 1.0f; }
    __device__ static void minima(const u8*, int, int, u32*) {}
    __device__ static float minimum_scale(const u8*, int) { return 0.0f; }
    __device__ static void pack_row(u8*, int, int, const u8*) {}
};

struct F16 : Plain<2> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const uint4 w = ((const uint4*)tile)[(block * 2 + r) * 32 + lane];
            a[r] = w.x, a[2 + r] = w.y, a[4 + r] = w.z, a[6 + r] = w.w;
        }
    }
    __device__ static u32 code(const u8* b, int) { return load_half(b); }
};

// Rounded to half, which is exact from 2^-14 to 65504 and to 2^-25 below.
struct BF16 : F16 {
    __device__ static u32 code(const u8* b, int) { return to_half(__int_as_float(load_half(b) << 16)); }
};

// Rounded to half as it is multiplied.
struct F32 : Plain<4> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float4 w = ((const float4*)tile)[(block * 4 + i) * 32 + lane];
            a[i % 2 * 4 + i / 2] = to_half2(w.x, w.y);
            a[i % 2 * 4 + 2 + i / 2] = to_half2(w.z, w.w);
        }
    }
    __device__ static u32 code(const u8* b, int) { return load_half(b) | (u32)load_half(b + 2) << 16; }
};

// `Q::fragment` for a whole warp that takes the blocks of a tile in order.
template <class Q>
__device__ __forceinline__ void warp_fragment(const u8* tile, typename Q::Scales& scales, int block, int lane, u32 (&a)[8]) {
    if constexpr (Q::SHARED_SCALES) {
        Q::raw(tile, block, lane, a);
        scales.multiply_codes(block, lane, a);
    } else {
        Q::fragment(tile, block, lane, a);
    }
}
