// The formats of GGUF as tensor cores want them: what a file's row holds, and how a tile of it lies in memory.
//
// A tile is 16 rows by TILE_K weights in the bytes that the file spends on them: planes of codes, then the scales of its
// rows. Codes lie in the order of the A fragments of m16n8k16. Of each 32 weights of a row, lane 4 * g + t holds eight, of
// row g and of row g + 8, as four pairs p: weights 16 * (p / 2) + 4 * t + 2 * (p % 2) and the next one. The even weight of a
// pair stands in the lower 16 bits of a word and the odd one at the same place in the upper, so a shift and a mask
// make two codes.
//
//     plane      bytes of 32 x 16 weights      word of lane          place of pair p of row g + 8 * r, even weight
//     4 bits     256                           [32-block][lane][r]   4 * p
//     2 bits     128                           [32-block][lane]      8 * r + 2 * p
//     1 bit      64                            [64-block][lane]      8 * (32-block % 2) + 4 * r + p
//     8 bits     512                           [32-block][lane][r]   two words a row; bytes 4 * t.. of each 16 in order
//
// A format is a struct:
//     TILE_K, BYTES     weights of a row in a tile, bytes of a tile
//     BLOCK, BLOCK_BYTES  of the file
//     GROUP             weights of a row whose sum is scaled in float32: 16, 32 or the whole tile
//     MINIMA            whether a minimum is taken off; then the sums of the tokens' 16s are multiplied with `minima`
//     fragment          A fragments of 32 weights: exact integers, times the sub-block's own scale where that is exact
//     scale             float32 factor of a group
//     pack_row          the scales of one row, from the file's blocks to the tile
//     code              the code of a weight, for packing
#pragma once
#include "half.cuh"

__device__ __forceinline__ u32 word_at(const u8* p, int i) { return ((const u32*)p)[i]; }
__device__ __forceinline__ u16 half_at(const u8* p, int i) { return ((const u16*)p)[i]; }
__device__ __forceinline__ u16 load_half(const u8* p) { return p[0] | p[1] << 8; }

// The eight words of A: {row, row + 8} of pair 0, of pair 1, of pair 2, of pair 3.
// Odd pairs stay four bits higher than even ones, so that a word takes one shift.
template <int BIAS>
__device__ __forceinline__ void nibbles(const u8* plane, int block, int lane, u32 (&a)[8]) {
    const uint2 w = ((const uint2*)plane)[block * 32 + lane];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const u32 v = r ? w.y : w.x;
        a[r] = integers(v & 0x000f000f, BIAS);
        a[2 + r] = integers_16(v & 0x00f000f0, BIAS);
        a[4 + r] = integers(v >> 8 & 0x000f000f, BIAS);
        a[6 + r] = integers_16(v >> 8 & 0x00f000f0, BIAS);
    }
}

// Codes of five bits of row g + 8 * r, where `nibbles` has them.
__device__ __forceinline__ void five_bit_codes(u32 v, u32 h, u32 (&codes)[4]) {
    codes[0] = v & 0x000f000f | h << 4 & 0x00100010;
    codes[1] = v & 0x00f000f0 | h << 7 & 0x01000100;
    codes[2] = v >> 8 & 0x000f000f | h << 2 & 0x00100010;
    codes[3] = v >> 8 & 0x00f000f0 | h << 5 & 0x01000100;
}

template <int BIAS>
__device__ __forceinline__ void five_bits(const u8* low, const u8* fifth, int block, int lane, u32 (&a)[8]) {
    const uint2 w = ((const uint2*)low)[block * 32 + lane];
    const u32 h = word_at(fifth, (block >> 1) * 32 + lane) >> 8 * (block & 1);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        u32 codes[4];
        five_bit_codes(r ? w.y : w.x, h >> 4 * r, codes);
#pragma unroll
        for (int p = 0; p < 4; ++p) a[2 * p + r] = p % 2 ? integers_16(codes[p], BIAS) : integers(codes[p], BIAS);
    }
}

// Four bytes of a table of 16, for the four lower nibbles of `q`.
__device__ __forceinline__ u32 look_up(const u32 (&table)[4], u32 q) {
    const u32 low = __byte_perm(table[0], table[1], q & 0x7777);
    const u32 high = __byte_perm(table[2], table[3], q & 0x7777);
    return __byte_perm(low, high, 0x3210 | (q & 0x8888) >> 1);
}

// As `nibbles`, through a table of bytes with 128 added.
__device__ __forceinline__ void through_table(const u32 (&table)[4], const u8* plane, int block, int lane, u32 (&a)[8]) {
    const uint2 w = ((const uint2*)plane)[block * 32 + lane];
    const u32 words[2] = {w.x, w.y};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const u32 even = look_up(table, words[r]), odd = look_up(table, words[r] >> 16);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            a[2 * p + r] = integers(__byte_perm(even, odd, p | (4 + p) << 8) & 0x00ff00ff, 128);
        }
    }
}

// A factor of 16 weights of a row: those of one mma.
__device__ __forceinline__ void multiply(u32 (&a)[8], int half, int r, u32 factor) {
    a[4 * half + r] = mul2(a[4 * half + r], factor);
    a[4 * half + 2 + r] = mul2(a[4 * half + 2 + r], factor);
}

__device__ __forceinline__ u32 twice(u16 h) { return h * 0x10001u; }
__device__ __forceinline__ u32 twice_integer(u32 q, u32 bias) { return integers(q * 0x10001u, bias); }

// 32-blocks with a half each (and a second one, the minimum, 256 bytes on); eight to a tile.
template <int LOW_, int HIGH_, int CODES, int STEP, bool MINIMA_>
struct Halves {
    static constexpr int TILE_K = 256, GROUP = 32, BLOCK = 32, LOW = LOW_, HIGH = HIGH_, BLOCK_BYTES = STEP;
    static constexpr int BYTES = 8 * 16 * STEP;
    static constexpr bool MINIMA = MINIMA_;

    __device__ static float scale(const u8* tile, int row, int block) {
        return to_float(half_at(tile + CODES, row * 8 + block));
    }
    __device__ static void pack_row(u8* tile, int row, int block, const u8* b) {
        ((u16*)(tile + CODES))[row * 8 + block] = load_half(b);
        if (MINIMA) ((u16*)(tile + CODES + 256))[row * 8 + block] = load_half(b + 2);
    }
    __device__ static void minima(const u8* tile, int row, int t, u32& a, u32& b) {
        a = twice(half_at(tile + CODES + 256, row * 8 + 2 * t));
        b = twice(half_at(tile + CODES + 256, row * 8 + 2 * t + 1));
    }
    __device__ static float minimum_scale(const u8*, int) { return 1.0f; }
};

__device__ __forceinline__ u32 nibble_code(const u8* q, int k) { return q[k & 15] >> (k & 16) / 4 & 15; }
__device__ __forceinline__ u32 fifth_code(const u8* h, int k) { return (h[k / 8] >> k % 8 & 1) << 4; }

struct Q4_0 : Halves<4, 0, 2048, 18, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) { nibbles<8>(tile, block, lane, a); }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 2, k); }
};

struct Q4_1 : Halves<4, 0, 2048, 20, true> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) { nibbles<0>(tile, block, lane, a); }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 4, k); }
};

struct Q5_0 : Halves<4, 1, 2560, 22, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        five_bits<16>(tile, tile + 2048, block, lane, a);
    }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 6, k) | fifth_code(b + 2, k); }
};

struct Q5_1 : Halves<4, 1, 2560, 24, true> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        five_bits<0>(tile, tile + 2048, block, lane, a);
    }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 8, k) | fifth_code(b + 4, k); }
};

struct Q8_0 : Halves<8, 0, 4096, 34, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const uint4 w = ((const uint4*)tile)[block * 32 + lane];
        const u32 words[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
        for (int p = 0; p < 4; ++p) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                a[2 * p + r] = integers(__byte_perm(words[2 * r + p / 2], 0, p % 2 ? 0x4342 : 0x4140), 128);
            }
        }
    }
    __device__ static u32 code(const u8* b, int k) { return b[2 + k] ^ 0x80; }
};

struct IQ4_NL : Q4_0 {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 table[4] = {0x3f2d1801, 0x766a5d4f, 0xa6998d81, 0xf1d9c5b5};
        through_table(table, tile, block, lane, a);
    }
};

// The scale is a power of two from 2^-128; below 2^-126 it is zero here.
struct MXFP4 : Halves<4, 0, 2048, 17, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 table[4] = {0x83828180, 0x8c888684, 0x7d7e7f80, 0x74787a7c};
        through_table(table, tile, block, lane, a);
    }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 1, k); }
    __device__ static float scale(const u8* tile, int row, int block) {
        const int x = tile[2048 + row * 8 + block];
        return __int_as_float(x < 2 ? 0 : x - 1 << 23);
    }
    __device__ static void pack_row(u8* tile, int row, int block, const u8* b) { tile[2048 + row * 8 + block] = b[0]; }
};

// 256-blocks.
template <int LOW_, int HIGH_, int STEP, int GROUP_, bool MINIMA_>
struct Super {
    static constexpr int TILE_K = 256, BLOCK = 256, GROUP = GROUP_, LOW = LOW_, HIGH = HIGH_, BLOCK_BYTES = STEP;
    static constexpr int BYTES = 16 * STEP;
    static constexpr bool MINIMA = MINIMA_;
    __device__ static void minima(const u8*, int, int, u32&, u32&) {}
    __device__ static float minimum_scale(const u8*, int) { return 0.0f; }
};

__device__ __forceinline__ void copy_bytes(u8* to, const u8* from, int n) {
    for (int i = 0; i < n; ++i) to[i] = from[i];
}

// Scales and minima of 6 bits of eight sub-blocks, and d and dmin: 16 bytes a row at CODES. The first eight hold a scale
// and the upper two bits of a minimum each, the next four the minima's lower four bits.
//
// Codes are multiplied as what their bits mean as halves, multiples of 2^-24, which is exact; the scale of the tile
// makes up for it.
template <int HIGH_, int STEP, int CODES>
struct SixBits : Super<4, HIGH_, STEP, 256, true> {
    __device__ static float scale(const u8* tile, int row, int) {
        return __fmul_rn(to_float(half_at(tile + CODES, row * 8 + 6)), 16777216.0f);
    }
    __device__ static float minimum_scale(const u8* tile, int row) { return -to_float(half_at(tile + CODES, row * 8 + 7)); }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        u8* to = tile + CODES + 16 * row;
        const u8* s = b + 4;
        u32 low = 0;
        for (int j = 0; j < 8; ++j) {
            const int scale = j < 4 ? s[j] & 63 : s[j + 4] & 15 | s[j - 4] >> 6 << 4;
            const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
            to[j] = scale | minimum >> 4 << 6;
            low |= (minimum & 15) << 4 * j;
        }
        ((u32*)to)[2] = low;
        copy_bytes(to + 12, b, 4);
    }
    // Of sub-blocks 2 * t and 2 * t + 1.
    __device__ static void minima(const u8* tile, int row, int t, u32& a, u32& b) {
        const u8* s = tile + CODES + 16 * row;
        const u32 high = half_at(s, t), low = s[8 + t];
        a = twice_integer(low & 15 | high >> 2 & 48, 0);
        b = twice_integer(low >> 4 | high >> 10 & 48, 0);
    }
    __device__ static void multiply_codes(const u8* tile, int block, int row, int r, const u32 (&codes)[4], u32 (&a)[8]) {
        const uint2 s = *(const uint2*)(tile + CODES + 16 * row);
        const u32 scale = integers(__byte_perm(block < 4 ? s.x : s.y, 0, 0x4040 + (block & 3) * 0x101) & 0x003f003f, 0);
        const u32 scale_16 = mul2(scale, 0x2c002c00u);
        a[r] = mul2(codes[0], scale);
        a[2 + r] = mul2(codes[1], scale_16);
        a[4 + r] = mul2(codes[2], scale);
        a[6 + r] = mul2(codes[3], scale_16);
    }
};

struct Q4_K : SixBits<0, 144, 2048> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const uint2 w = ((const uint2*)tile)[block * 32 + lane];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u32 v = r ? w.y : w.x;
            const u32 codes[4] = {v & 0x000f000f, v & 0x00f000f0, v >> 8 & 0x000f000f, v >> 8 & 0x00f000f0};
            multiply_codes(tile, block, lane / 4 + 8 * r, r, codes, a);
        }
    }
    __device__ static u32 code(const u8* b, int k) { return b[16 + k / 64 * 32 + k % 32] >> (k & 32) / 8 & 15; }
};

struct Q5_K : SixBits<1, 176, 2560> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const uint2 w = ((const uint2*)tile)[block * 32 + lane];
        const u32 h = word_at(tile + 2048, (block >> 1) * 32 + lane) >> 8 * (block & 1);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            u32 codes[4];
            five_bit_codes(r ? w.y : w.x, h >> 4 * r, codes);
            multiply_codes(tile, block, lane / 4 + 8 * r, r, codes, a);
        }
    }
    __device__ static u32 code(const u8* b, int k) {
        return b[48 + k / 64 * 32 + k % 32] >> (k & 32) / 8 & 15 | (b[16 + k % 32] >> k / 32 & 1) << 4;
    }
};

// A product of scale and code has up to 13 bits, so the scale multiplies in float32.
struct Q6_K : Super<4, 2, 210, 16, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const uint2 w = ((const uint2*)tile)[block * 32 + lane];
        const u32 h = word_at(tile + 2048, block * 32 + lane);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const u32 v = r ? w.y : w.x, u = h >> 8 * r;
            a[r] = integers(v & 0x000f000f | u << 4 & 0x00300030, 32);
            a[2 + r] = integers_16(v & 0x00f000f0 | u << 6 & 0x03000300, 32);
            a[4 + r] = integers(v >> 8 & 0x000f000f | u & 0x00300030, 32);
            a[6 + r] = integers_16(v >> 8 & 0x00f000f0 | u << 2 & 0x03000300, 32);
        }
    }
    __device__ static float scale(const u8* tile, int row, int group) {
        return __fmul_rn(to_float(half_at(tile + 3328, row)), (float)(signed char)tile[3072 + 16 * row + group]);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        copy_bytes(tile + 3072 + 16 * row, b + 192, 16);
        copy_bytes(tile + 3328 + 2 * row, b + 208, 2);
    }
    __device__ static u32 code(const u8* b, int k) {
        const int low = b[k / 128 * 64 + k % 64] >> (k & 64) / 16 & 15;
        return low | (b[128 + k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3) << 4;
    }
};

__device__ __forceinline__ u32 crumb_code(const u8* q, int k) { return q[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3; }

struct Q2_K : Super<2, 0, 84, 256, true> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 w = word_at(tile, block * 32 + lane);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            a[2 * p] = integers(w >> 2 * p & 0x00030003, 0);
            a[2 * p + 1] = integers(w >> (8 + 2 * p) & 0x00030003, 0);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u8 s = tile[1024 + 16 * (lane / 4 + i % 2 * 8) + 2 * block + i / 2];
            multiply(a, i / 2, i % 2, twice_integer(s & 15, 0));
        }
    }
    __device__ static float scale(const u8* tile, int row, int) { return to_float(half_at(tile + 1280, 2 * row)); }
    __device__ static float minimum_scale(const u8* tile, int row) { return -to_float(half_at(tile + 1280, 2 * row + 1)); }
    __device__ static void minima(const u8* tile, int row, int t, u32& a, u32& b) {
        const u32 s = word_at(tile + 1024, 4 * row + t) >> 4;
        a = integers(s & 15 | (s << 8) & 0x000f0000, 0);
        b = integers(s >> 16 & 15 | (s >> 8) & 0x000f0000, 0);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        copy_bytes(tile + 1024 + 16 * row, b, 16);
        copy_bytes(tile + 1280 + 4 * row, b + 80, 4);
    }
    __device__ static u32 code(const u8* b, int k) { return crumb_code(b + 16, k); }
};

struct Q3_K : Super<2, 1, 110, 256, false> {
    __device__ static int scale_of(const u8* s, int j) {
        return ((j < 8 ? s[j] & 15 : s[j - 8] >> 4) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4);
    }
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 w = word_at(tile, block * 32 + lane);
        const u32 h = word_at(tile + 1024, (block >> 1) * 32 + lane) >> 8 * (block & 1);
#pragma unroll
        for (int p = 0; p < 4; ++p) {
            a[2 * p] = integers(w >> 2 * p & 0x00030003 | (h >> p & 0x00010001) << 2, 4);
            a[2 * p + 1] = integers(w >> (8 + 2 * p) & 0x00030003 | (h >> (4 + p) & 0x00010001) << 2, 4);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const u8* s = tile + 1536 + 12 * (lane / 4 + i % 2 * 8);
            multiply(a, i / 2, i % 2, twice_integer(scale_of(s, 2 * block + i / 2), 32));
        }
    }
    __device__ static float scale(const u8* tile, int row, int) { return to_float(half_at(tile + 1728, row)); }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        copy_bytes(tile + 1536 + 12 * row, b + 96, 12);
        copy_bytes(tile + 1728 + 2 * row, b + 108, 2);
    }
    __device__ static u32 code(const u8* b, int k) {
        return crumb_code(b + 32, k) | (b[k % 32] >> k / 32 & 1) << 2;
    }
};

struct IQ4_XS : Super<4, 0, 136, 32, false> {
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        IQ4_NL::fragment(tile, block, lane, a);
    }
    __device__ static float scale(const u8* tile, int row, int block) {
        const u8* s = tile + 2048 + 8 * row;
        const int q = word_at(s, 1) >> 4 * block & 15 | (half_at(s, 1) >> 2 * block & 3) << 4;
        return __fmul_rn(to_float(half_at(s, 0)), (float)(q - 32));
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) { copy_bytes(tile + 2048 + 8 * row, b, 8); }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 8 + k / 32 * 16, k % 32); }
};

// Plain numbers: eight of row g, then eight of row g + 8, as halves or as two times four float32.
template <int SIZE>
struct Plain {
    static constexpr int TILE_K = 64, GROUP = 64, BLOCK = 1, BLOCK_BYTES = SIZE, LOW = 8 * SIZE, HIGH = 0;
    static constexpr int BYTES = 16 * 64 * SIZE;
    static constexpr bool MINIMA = false;
    __device__ static float scale(const u8*, int, int) { return 1.0f; }
    __device__ static void minima(const u8*, int, int, u32&, u32&) {}
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
