// GGUF formats with blocks of 256 weights (K-quants, IQ4_XS); quants.cuh has the layout.
#pragma once
#include "small_quants.cuh"

template <int LOW_, int HIGH_, int STEP, int GROUP_, int MINIMA_, int RUN_ = 8>
struct Super {
    static constexpr int TILE_K = 256, BLOCK = 256, GROUP = GROUP_, LOW = LOW_, HIGH = HIGH_, BLOCK_BYTES = STEP;
    static constexpr int BYTES = 16 * STEP, MINIMA = MINIMA_, RUN = RUN_;
    static constexpr bool SHARED_SCALES = false;
    __device__ static void minima(const u8*, int, int, u32*) {}
    __device__ static float minimum_scale(const u8*, int) { return 0.0f; }
};

// Scales and minima of 6 bits for eight sub-blocks, and d and dmin: 256 bytes a tile at CODES. First, for lane 4 * g + t,
// four bytes of sub-blocks 2 * t and 2 * t + 1 of rows g and g + 8; each holds a scale and the upper two bits of a minimum.
// Then, for each lane, four nibbles in that order, the lower bits of the minima. Then, for each g, d and dmin of its two
// rows.
template <int HIGH_, int STEP, int CODES>
struct SixBits : Super<4, HIGH_, STEP, 256, 8> {
    static constexpr bool SHARED_SCALES = true;

    // A lane unpacks two scales of each of its rows for the four lanes of the rows.
    struct Scales {
        u32 own[2], now[2];
        __device__ Scales() {}
        __device__ Scales(const u8* tile, int lane) {
            const u32 s = word_at(tile + CODES, lane) & 0x3f3f3f3f;
            UNROLL for (int r = 0; r < 2; ++r)
                own[r] = sub_half2(__byte_perm(s, 0x64646464, r ? 0x4342 : 0x4140), 0x64006400);
        }
        __device__ void multiply_codes(int block, int lane, u32 (&a)[8]) {
            UNROLL for (int r = 0; r < 2; ++r) {
                if (block % 2 == 0) now[r] = __shfl_sync(~0u, own[r], lane & 28 | block / 2);
                multiply(a, r, one_of(now[r], block % 2), one_of(mul_half2(now[r], 0x2c002c00u), block % 2));
            }
        }
    };
    __device__ static void raw(const u8* tile, int block, int lane, u32 (&a)[8]) {
        if (HIGH_) {
            raw_five_bits(tile, tile + 2048, block, lane, a);
        } else {
            raw_nibbles(tile, block, lane, a);
        }
    }
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        raw(tile, block, lane, a);
        UNROLL for (int r = 0; r < 2; ++r) {
            const u8 byte = tile[CODES + 4 * (lane & 28) + block / 2 * 4 + 2 * r + block % 2];
            const u32 scale = twice_integer(byte & 63, 0);
            multiply(a, r, scale, mul_half2(scale, 0x2c002c00u));
        }
    }
    __device__ static u16 of_row(const u8* tile, int row, int i) {
        return half_at(tile + CODES + 192, row % 8 * 4 + row / 8 * 2 + i);
    }
    __device__ static float scale(const u8* tile, int row, int) { return __fmul_rn(to_float(of_row(tile, row, 0)), UNIT); }
    __device__ static float minimum_scale(const u8* tile, int row) {
        return __fmul_rn(to_float(of_row(tile, row, 1)), -UNIT);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        const u8* s = b + 4;
        const int g = row % 8, r = row / 8;
        for (int t = 0; t < 4; ++t) {
            int low = 0;
            for (int i = 0; i < 2; ++i) {
                const int j = 2 * t + i;
                const int scale = j < 4 ? s[j] & 63 : s[j + 4] & 15 | s[j - 4] >> 6 << 4;
                const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | s[j] >> 6 << 4;
                tile[CODES + 4 * (4 * g + t) + 2 * r + i] = scale | minimum >> 4 << 6;
                low |= (minimum & 15) << 4 * i;
            }
            tile[CODES + 128 + 2 * (4 * g + t) + r] = low;
        }
        copy_bytes(tile + CODES + 192 + 8 * g + 4 * r, b, 4);
    }
    __device__ static void minima(const u8* tile, int row, int t, u32* m) {
        const int lane = row % 8 * 4 + t;
        const u32 high = word_at(tile + CODES, lane) >> 2, low = half_at(tile + CODES + 128, lane);
        const u32 all = high & 0x30303030 | __byte_perm(low, low >> 4, 0x5140) & 0x0f0f0f0f;
        m[0] = __byte_perm(all, 0, row / 8 ? 0x4342 : 0x4140);
    }
};

struct Q4_K : SixBits<0, 144, 2048> {
    __device__ static u32 code(const u8* b, int k) { return b[16 + k / 64 * 32 + k % 32] >> (k & 32) / 8 & 15; }
};

struct Q5_K : SixBits<1, 176, 2560> {
    __device__ static u32 code(const u8* b, int k) {
        return b[48 + k / 64 * 32 + k % 32] >> (k & 32) / 8 & 15 | (b[16 + k % 32] >> k / 32 & 1) << 4;
    }
};

// A product of scale and code has up to 13 bits, so the scale is multiplied in float32. It is stored with 128 added.
struct Q6_K : Super<4, 2, 210, 16, 0, 4> {
    struct Scales : ScaleRows<uint4, 3072> {
        using ScaleRows<uint4, 3072>::ScaleRows;
        // Scale of a group of row g + 8 * r, without `row_scale`.
        __device__ float of(int r, int group) const {
            const u32 words[4] = {rows[r].x, rows[r].y, rows[r].z, rows[r].w};
            const u32 pair = biased<128>(__byte_perm(words[group / 4], 0, group % 4 / 2 ? 0x4342 : 0x4140));
            return to_float((u16)(pair >> 16 * (group % 2)));
        }
    };
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        raw_six_bits(tile, tile + 2048, block, lane, a);
        remove_bias<32>(a);
    }
    __device__ static float row_scale(const u8* tile, int row) {
        return __fmul_rn(to_float(half_at(tile + 3328, row)), UNIT * UNIT);
    }
    __device__ static float scale(const u8* tile, int row, int group) {
        const float d = to_float(half_at(tile + 3328, row));
        return __fmul_rn(d, UNIT * (float)(tile[3072 + 16 * row + group] - 128));
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        for (int i = 0; i < 16; ++i) tile[3072 + 16 * row + i] = b[192 + i] ^ 0x80;
        copy_bytes(tile + 3328 + 2 * row, b + 208, 2);
    }
    __device__ static u32 code(const u8* b, int k) {
        const int low = b[k / 128 * 64 + k % 64] >> (k & 64) / 16 & 15;
        return low | (b[128 + k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3) << 4;
    }
};

// Codes are multiplied at their bit positions: those of pair p are 4^p times larger, and the scales make up for it.
struct Q2_K : Super<2, 0, 84, 256, 16> {
    using Scales = NoScales;
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 w = word_at(tile, block * 32 + lane);
        UNROLL for (int r = 0; r < 2; ++r) {
            const u8 s = tile[1024 + 16 * (lane / 4 + 8 * r) + 2 * block + lane % 4 / 2];
            const u32 scale = twice_integer(s & 15, 0);
            const u32 parts[4] = {scale, mul_half2(scale, 0x34003400u), mul_half2(scale, 0x2c002c00u),
                                  mul_half2(scale, 0x24002400u)};
            UNROLL for (int p = 0; p < 4; ++p) a[2 * p + r] = mul_half2(w >> 8 * r & 0x00030003 << 2 * p, parts[p]);
        }
    }
    __device__ static float scale(const u8* tile, int row, int) {
        return __fmul_rn(to_float(half_at(tile + 1280, 2 * row)), UNIT);
    }
    __device__ static float minimum_scale(const u8* tile, int row) { return -to_float(half_at(tile + 1280, 2 * row + 1)); }
    __device__ static void minima(const u8* tile, int row, int t, u32* m) {
        const u32 s = word_at(tile + 1024, 4 * row + t) >> 4;
        m[0] = integers(s & 15 | (s << 8) & 0x000f0000, 0);
        m[1] = integers(s >> 16 & 15 | (s >> 8) & 0x000f0000, 0);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        copy_bytes(tile + 1024 + 16 * row, b, 16);
        copy_bytes(tile + 1280 + 4 * row, b + 80, 4);
    }
    __device__ static u32 code(const u8* b, int k) { return two_bit_code(b + 16, k); }
};

struct Q3_K : Super<2, 1, 110, 256, 0> {
    using Scales = NoScales;
    __device__ static int scale_of(const u8* s, int j) {
        return ((j < 8 ? s[j] & 15 : s[j - 8] >> 4) | (s[8 + j % 4] >> j / 4 * 2 & 3) << 4);
    }
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        const u32 w = word_at(tile, block * 32 + lane);
        const u32 h = word_at(tile + 1024, (block >> 1) * 32 + lane) >> 8 * (block & 1);
        UNROLL for (int r = 0; r < 2; ++r) {
            const u8* s = tile + 1536 + 12 * (lane / 4 + 8 * r);
            const u32 scale = twice_integer(scale_of(s, 2 * block + lane % 4 / 2), 32);
            UNROLL for (int p = 0; p < 4; ++p) {
                const u32 code = w >> (8 * r + 2 * p) & 0x00030003 | (h >> (4 * r + p) & 0x00010001) << 2;
                a[2 * p + r] = mul_half2(biased<4>(code), scale);
            }
        }
    }
    __device__ static float scale(const u8* tile, int row, int) {
        return __fmul_rn(to_float(half_at(tile + 1728, row)), UNIT);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) {
        copy_bytes(tile + 1536 + 12 * row, b + 96, 12);
        copy_bytes(tile + 1728 + 2 * row, b + 108, 2);
    }
    __device__ static u32 code(const u8* b, int k) { return two_bit_code(b + 32, k) | (b[k % 32] >> k / 32 & 1) << 2; }
};

struct IQ4_XS : Super<4, 0, 136, 32, 0> {
    struct Scales : ScaleRows<uint2, 2048> {
        using ScaleRows<uint2, 2048>::ScaleRows;
        __device__ float of(int r, int block) const { return factor(rows[r], block); }
    };
    __device__ static void fragment(const u8* tile, int block, int lane, u32 (&a)[8]) {
        IQ4_NL::fragment(tile, block, lane, a);
    }
    __device__ static float factor(uint2 s, int block) {
        const int q = s.y >> 4 * block & 15 | (s.x >> (16 + 2 * block) & 3) << 4;
        return __fmul_rn(to_float((u16)s.x), UNIT * (float)(q - 32));
    }
    __device__ static float scale(const u8* tile, int row, int block) {
        return factor(((const uint2*)(tile + 2048))[row], block);
    }
    __device__ static void pack_row(u8* tile, int row, int, const u8* b) { copy_bytes(tile + 2048 + 8 * row, b, 8); }
    __device__ static u32 code(const u8* b, int k) { return nibble_code(b + 8 + k / 32 * 16, k % 32); }
};
