// Codes of weights from the bit planes of a tile to A fragments; quants.cuh has the layout.
#pragma once
#include "../gpu/include/half.cuh"

__device__ __forceinline__ u32 word_at(const u8* p, int i) { return ((const u32*)p)[i]; }
__device__ __forceinline__ u16 half_at(const u8* p, int i) { return ((const u16*)p)[i]; }
__device__ __forceinline__ u16 load_half(const u8* p) { return p[0] | p[1] << 8; }

// Two integers of at most 10 bits, one in each half of `pair`, minus `bias`, as half2. Exact: with 0x6400 (1024) in the
// exponent bits, an integer is the mantissa.
__device__ __forceinline__ u32 integers(u32 pair, u32 bias) {
    return sub_half2(pair | 0x64006400u, (0x6400u + bias) * 0x10001u);
}

// The lower or the upper half of a word in both halves. Written as moves of 16-bit registers, which the compiler folds into
// the multiply.
__device__ __forceinline__ u32 one_of(u32 pair, int upper) {
    u32 both;
    if (upper) {
        asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {h, h};}" : "=r"(both) : "r"(pair));
    } else {
        asm("{.reg .b16 l, h;\nmov.b32 {l, h}, %1;\nmov.b32 %0, {l, l};}" : "=r"(both) : "r"(pair));
    }
    return both;
}

// Index, within a block of 32, of weight number e of lane t's eight.
template <int RUN>
__device__ __forceinline__ int lane_weight(int t, int e) {
    return RUN == 8 ? 8 * t + e : e / 4 * 16 + 4 * t + e % 4;
}

// The scales of rows g and g + 8 of a tile, as vectors `Vector` at offset AT; constructed by a whole warp.
template <class Vector, int AT>
struct ScaleRows {
    Vector rows[2];
    __device__ ScaleRows() {}
    __device__ ScaleRows(const u8* tile, int lane) {
        rows[0] = ((const Vector*)(tile + AT))[lane / 4];
        rows[1] = ((const Vector*)(tile + AT))[lane / 4 + 8];
    }
};

// Scales of formats whose lanes need no scale of another lane.
struct NoScales {
    __device__ NoScales() {}
    __device__ NoScales(const u8*, int) {}
    __device__ float of(int, int) const { return 1.0f; }
};

// Multiply the words of row g + 8 * r: those of even pairs by `even`, those of odd pairs by `odd`.
__device__ __forceinline__ void multiply(u32 (&a)[8], int r, u32 even, u32 odd) {
    a[r] = mul_half2(a[r], even), a[4 + r] = mul_half2(a[4 + r], even);
    a[2 + r] = mul_half2(a[2 + r], odd), a[6 + r] = mul_half2(a[6 + r], odd);
}

__device__ __forceinline__ u32 twice_integer(u32 q, u32 bias) { return integers(q * 0x10001u, bias); }

// Codes, as bits of a float16, are denormal numbers: multiples of 2^-24, which tensor cores and additions handle exactly.
// UNIT compensates for 2^-24.
constexpr float UNIT = 16777216.0f;

// Codes minus BIAS; `biased_16` for codes that are stored four bits higher.
template <int BIAS>
__device__ __forceinline__ u32 biased(u32 pair) {
    return BIAS ? sub_half2(pair, BIAS * 0x10001u) : pair;
}
template <int BIAS>
__device__ __forceinline__ u32 biased_16(u32 pair) {
    return fma_half2(pair, 0x2c002c00u, (0x8000u + BIAS) * 0x10001u);
}

// Codes in the eight words of an A fragment: {row, row + 8} of pair 0, of pair 1, of pair 2, of pair 3. Codes of odd pairs
// are four bits higher than those of even ones, so that each word takes one shift.
__device__ __forceinline__ void raw_nibbles(const u8* plane, int block, int lane, u32 (&a)[8]) {
    const uint2 w = ((const uint2*)plane)[block * 32 + lane];
    UNROLL for (int r = 0; r < 2; ++r) {
        const u32 v = r ? w.y : w.x;
        a[r] = v & 0x000f000f;
        a[2 + r] = v & 0x00f000f0;
        a[4 + r] = v >> 8 & 0x000f000f;
        a[6 + r] = v >> 8 & 0x00f000f0;
    }
}

// As `raw_nibbles`, with a fifth bit from a second plane.
__device__ __forceinline__ void raw_five_bits(const u8* low, const u8* fifth, int block, int lane, u32 (&a)[8]) {
    raw_nibbles(low, block, lane, a);
    const u32 h = word_at(fifth, (block >> 1) * 32 + lane) >> 8 * (block & 1);
    UNROLL for (int r = 0; r < 2; ++r) {
        const u32 u = h >> 4 * r;
        a[r] |= u << 4 & 0x00100010;
        a[2 + r] |= u << 7 & 0x01000100;
        a[4 + r] |= u << 2 & 0x00100010;
        a[6 + r] |= u << 5 & 0x01000100;
    }
}

// As `raw_nibbles`, with two more bits from a second plane.
__device__ __forceinline__ void raw_six_bits(const u8* low, const u8* high, int block, int lane, u32 (&a)[8]) {
    raw_nibbles(low, block, lane, a);
    const u32 h = word_at(high, block * 32 + lane);
    UNROLL for (int r = 0; r < 2; ++r) {
        const u32 first = r ? h >> 4 : h << 4, second = r ? h >> 6 : h << 2;
        a[r] |= first & 0x00300030;
        a[2 + r] |= first & 0x03000300;
        a[4 + r] |= second & 0x00300030;
        a[6 + r] |= second & 0x03000300;
    }
}

// Subtract BIAS from all codes and move those of odd pairs to the lowest bits.
template <int BIAS>
__device__ __forceinline__ void remove_bias(u32 (&a)[8]) {
    UNROLL for (int i = 0; i < 8; ++i) a[i] = i / 2 % 2 ? biased_16<BIAS>(a[i]) : biased<BIAS>(a[i]);
}

// Codes of 8 bits, which are stored with 128 added.
__device__ __forceinline__ void raw_bytes(const u8* plane, int block, int lane, u32 (&a)[8]) {
    const uint4 w = ((const uint4*)plane)[block * 32 + lane];
    const u32 words[4] = {w.x, w.y, w.z, w.w};
    UNROLL for (int p = 0; p < 4; ++p) {
        UNROLL for (int r = 0; r < 2; ++r) a[2 * p + r] = biased<128>(words[2 * r + p / 2] >> 8 * (p % 2) & 0x00ff00ff);
    }
}

// Look up the four lower nibbles of `q` in a table of 16 bytes.
__device__ __forceinline__ u32 table_lookup(const u32 (&table)[4], u32 q) {
    const u32 low = __byte_perm(table[0], table[1], q & 0x7777);
    const u32 high = __byte_perm(table[2], table[3], q & 0x7777);
    return __byte_perm(low, high, 0x3210 | (q & 0x8888) >> 1);
}

// Codes of 4 bits, mapped by a table of bytes with 128 added.
__device__ __forceinline__ void raw_table(const u32 (&table)[4], const u8* plane, int block, int lane, u32 (&a)[8]) {
    const uint2 w = ((const uint2*)plane)[block * 32 + lane];
    const u32 words[2] = {w.x, w.y};
    UNROLL for (int r = 0; r < 2; ++r) {
        const u32 even = table_lookup(table, words[r]), odd = table_lookup(table, words[r] >> 16);
        UNROLL for (int p = 0; p < 4; ++p) {
            a[2 * p + r] = biased<128>(__byte_perm(even, odd, p | (4 + p) << 8) & 0x00ff00ff);
        }
    }
}

// Code of weight k in a block of the file, from its planes there.
__device__ __forceinline__ u32 nibble_code(const u8* q, int k) { return q[k & 15] >> (k & 16) / 4 & 15; }
__device__ __forceinline__ u32 fifth_code(const u8* h, int k) { return (h[k / 8] >> k % 8 & 1) << 4; }
__device__ __forceinline__ u32 two_bit_code(const u8* q, int k) { return q[k / 128 * 32 + k % 32] >> k / 32 % 4 * 2 & 3; }

__device__ __forceinline__ void copy_bytes(u8* to, const u8* from, int n) {
    for (int i = 0; i < n; ++i) to[i] = from[i];
}
