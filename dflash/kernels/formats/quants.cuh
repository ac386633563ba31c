// GGUF formats in the layout of tensor core fragments: the blocks of a file, and the layout of a tile in memory.
//
// A tile is 16 rows by TILE_K weights and has as many bytes as the file uses for them: planes of codes, then the scales of
// its rows. Codes are in the order of the A fragments of m16n8k16. Of each 32 weights of a row, lane 4 * g + t holds eight
// of row g and eight of row g + 8, as four pairs p: weights 8 * t + 2 * p and 8 * t + 2 * p + 1 (RUN 8), so that the lane
// needs 16 consecutive bytes of a token. Formats whose sums are scaled for every 16 weights have RUN 4: weights
// 16 * (p / 2) + 4 * t + 2 * (p % 2) and the next one. The even weight of a pair is in the lower 16 bits of a word, the odd
// one at the same bits of the upper 16, so one shift and one mask extract two codes.
//
//     plane      bytes of 32 x 16 weights      word of lane          bit of pair p of row g + 8 * r, even weight
//     4 bits     256                           [32-block][lane][r]   4 * p
//     2 bits     128                           [32-block][lane]      8 * r + 2 * p as lower plane; as upper plane,
//                                                                8 * r + 2 * (p / 2) + 4 * (p % 2)
//     1 bit      64                            [64-block][lane]      8 * (32-block % 2) + 4 * r + p
//     8 bits     512                           [32-block][lane][r]   two words a row, of two pairs each; even weights first
//
// A format is a struct with these members:
//     TILE_K, BYTES       weights of a row in a tile; bytes of a tile
//     BLOCK, BLOCK_BYTES  weights and bytes of a block of the file
//     LOW, HIGH           bits of the two planes
//     RUN                 consecutive weights of a lane: 8 or 4
//     GROUP               weights of a row whose sum is scaled in float32: 16, 32 or the whole tile
//     MINIMA              minima of a row of a tile: 0, 8 or 16; they are multiplied by the sums of the tokens' groups
//     Scales              a lane's share of the scales of a tile, constructed by a whole warp; `of(r, group)` is the factor
//                         of a group of row g + 8 * r
//     fragment            A fragments of 32 weights: exact integers, divided by UNIT unless the format is unquantised, times
//                         the sub-block's scale where that product is exact
//     SHARED_SCALES       true if a whole warp has a faster way to these fragments: `raw`, then `Scales::multiply_codes`,
//                         for the blocks in order
//     scale               float32 factor of a group, computed by one lane
//     minima              minima of groups MINIMA / 4 * t and following, as pairs of float16; times `minimum_scale`
//     pack_row            copies the scales of one row from the file's blocks to the tile
//     code                the code of a weight in a block of the file, for packing
#pragma once
#include "small_quants.cuh"
#include "k_quants.cuh"

// Unquantised formats: eight weights of row g, then eight of row g + 8, as float16, or as two vectors of four float32.
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
        UNROLL for (int r = 0; r < 2; ++r) {
            const uint4 w = ((const uint4*)tile)[(block * 2 + r) * 32 + lane];
            a[r] = w.x, a[2 + r] = w.y, a[4 + r] = w.z, a[6 + r] = w.w;
        }
    }
    __device__ static u32 code(const u8* b, int) { return load_half(b); }
};

// Rounded to float16: exact from 2^-14 to 65504 in magnitude; below, rounded to multiples of 2^-24.
struct BF16 : F16 {
    __device__ static u32 code(const u8* b, int) { return to_half(__int_as_float(load_half(b) << 16)); }
};

// Rounded to float16 in `fragment`; the tile holds float32.
struct F32 : Plain<4> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        UNROLL for (int i = 0; i < 4; ++i) {
            const float4 w = ((const float4*)tile)[(block * 4 + i) * 32 + lane];
            a[i % 2 * 4 + i / 2] = to_half2(w.x, w.y);
            a[i % 2 * 4 + 2 + i / 2] = to_half2(w.z, w.w);
        }
    }
    __device__ static u32 code(const u8* b, int) { return load_half(b) | (u32)load_half(b + 2) << 16; }
};

// `Q::fragment` by a whole warp that takes the blocks of a tile in order.
template <class Q>
__device__ __forceinline__ void warp_fragment(const u8* tile, typename Q::Scales& scales, int block, int lane, u32 (&a)[8]) {
    if constexpr (Q::SHARED_SCALES) {
        Q::raw(tile, block, lane, a);
        scales.multiply_codes(block, lane, a);
    } else {
        Q::fragment(tile, block, lane, a);
    }
}
