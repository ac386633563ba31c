// GGUF formats with blocks of 32 weights; quants.cuh has the layout.
#pragma once
#include "planes.cuh"

// Blocks of 32 weights with a float16 scale, and if MINIMA a float16 minimum, stored 256 bytes after the scales. A tile row
// has eight blocks.
template <int LOW_, int HIGH_, int CODES, int STEP, int MINIMA_>
struct Halves {
    static constexpr int TILE_K = 256, GROUP = 32, BLOCK = 32, LOW = LOW_, HIGH = HIGH_, BLOCK_BYTES = STEP;
    static constexpr int BYTES = 8 * 16 * STEP, MINIMA = MINIMA_, RUN = 8;
    static constexpr bool SHARED_SCALES = false;

    struct Scales : ScaleRows<uint4, CODES> {
        using ScaleRows<uint4, CODES>::ScaleRows;
        using ScaleRows<uint4, CODES>::rows;
        __device__ float of(int r, int block) const {
            const u32 words[4] = {rows[r].x, rows[r].y, rows[r].z, rows[r].w};
            return __fmul_rn(to_float((u16)(words[block / 2] >> 16 * (block % 2))), UNIT);
        }
    };
    __device__ static float scale(const u8* tile, int row, int block) {
        return __fmul_rn(to_float(half_at(tile + CODES, row * 8 + block)), UNIT);
    }
    __device__ static void pack_row(u8* tile, int row, int block, const u8* b) {
        ((u16*)(tile + CODES))[row * 8 + block] = load_half(b);
        if (MINIMA) ((u16*)(tile + CODES + 256))[row * 8 + block] = load_half(b + 2);
    }
    __device__ static void minima(const u8* tile, int row, int t, u32* m) {
        m[0] = word_at(tile + CODES + 256, row * 4 + t);
    }
    __device__ static float minimum_scale(const u8*, int) { return 1.0f; }
};

// Codes of 4 bits, or of 5 bits if FIFTH, minus BIAS; a block of the file has STEP bytes, its nibbles from byte AT on.
template <int FIFTH, int STEP, int MINIMA_, int AT, int BIAS>
struct BiasedCodes : Halves<4, FIFTH, FIFTH ? 2560 : 2048, STEP, MINIMA_> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        if (FIFTH) {
            raw_five_bits(tile, tile + 2048, block, lane, a);
        } else {
            raw_nibbles(tile, block, lane, a);
        }
        remove_bias<BIAS>(a);
    }
    __device__ static u32 code(const u8* b, int k) {
        return nibble_code(b + AT, k) | (FIFTH ? fifth_code(b + AT - 4, k) : 0);
    }
};

struct Q4_0 : BiasedCodes<0, 18, 0, 2, 8> {};
struct Q4_1 : BiasedCodes<0, 20, 8, 4, 0> {};
struct Q5_0 : BiasedCodes<1, 22, 0, 6, 16> {};
struct Q5_1 : BiasedCodes<1, 24, 8, 8, 0> {};

struct Q8_0 : Halves<8, 0, 4096, 34, 0> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) { raw_bytes(tile, block, lane, a); }
    __device__ static u32 code(const u8* b, int k) { return b[2 + k] ^ 0x80; }
};

struct IQ4_NL : Halves<4, 0, 2048, 18, 0> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 table[4] = {0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5};
        raw_table(table, tile, block, lane, a);
    }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 2, k); }
};

// The scale is a power of two, at least 2^-128. Scales above 2^103 become infinite here.
struct MXFP4 : Halves<4, 0, 2048, 17, 0> {
    struct Scales : ScaleRows<uint2, 2048> {
        using ScaleRows<uint2, 2048>::ScaleRows;
        __device__ float of(int r, int block) const {
            return power((block < 4 ? rows[r].x : rows[r].y) >> 8 * (block % 4) & 255);
        }
    };
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 table[4] = {0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c};
        raw_table(table, tile, block, lane, a);
    }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 1, k); }
    __device__ static float power(int x) { return __int_as_float(x + 23 << 23); }
    __device__ static float scale(const u8* tile, int row, int block) { return power(tile[2048 + row * 8 + block]); }
    __device__ static void pack_row(u8* tile, int row, int block, const u8* b) { tile[2048 + row * 8 + block] = b[0]; }
};
