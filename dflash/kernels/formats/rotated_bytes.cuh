// Values of 256 columns as int8, after a rotation that spreads a large one.
//
// Columns 32 * j + 8 * o + e of 256, for j and e from 0 to 7, are group o. A group of 64 is multiplied by fixed signs, then by a
// Hadamard matrix, so that a product of two rotated rows is 64 times that of the rows (Ashkboos et al. 2024, QuaRot, arXiv
// 2404.00456). Without the signs, columns of equal values would make one large one. Each step adds and subtracts pairs whose
// indices differ in one bit: those of e first, the lowest bit first. Rows of weights are rotated in float16, tokens in float32.
#pragma once
#include "../gpu/include/half.cuh"

constexpr u64 SIGNS = 0x9e3779b97f4a7c15;  // bit 8 * j + e: whether a column changes its sign

// Rotate a group: word 4 * j + i holds its columns e = 2 * i and 2 * i + 1.
__device__ __forceinline__ void rotate(u32 (&words)[32]) {
    UNROLL for (int i = 0; i < 32; ++i) {
        const u32 signs = (u32)(SIGNS >> 2 * i), word = words[i] ^ ((signs & 1) << 15 | (signs >> 1 & 1) << 31);
        words[i] = fma_half2(word, 0xbc003c00, __byte_perm(word, 0, 0x1032));  // the sum and the difference of the two
    }
    UNROLL for (int apart = 1; apart < 32; apart *= 2) {
        UNROLL for (int i = 0; i < 32; ++i) {
            if (i & apart) continue;
            const u32 a = words[i], b = words[i + apart];
            words[i] = add_half2(a, b), words[i + apart] = sub_half2(a, b);
        }
    }
}

// The largest absolute value of a group.
__device__ __forceinline__ float largest_of(const u32 (&words)[32]) {
    u32 bits = 0;
    UNROLL for (int i = 0; i < 32; ++i) bits = max(bits, max(words[i] & 0x7fffu, words[i] >> 16 & 0x7fffu));
    return to_float((u16)bits);
}

// The largest float16 whose product with the largest absolute value is at most 127. It is at most 65504, so a row of smaller
// values than 0.002 has fewer steps.
__device__ __forceinline__ u16 half_factor(float largest) {
    if (!(largest > 0.0f)) return 0;
    const float factor = fminf(__fdiv_rn(127.0f, largest), 65504.0f);
    const u16 half = to_half(factor);
    return half - (to_float(half) > factor);
}

// Four values times a factor, twice in a word, rounded to whole numbers of 8 bits: a sum with 1.5 * 2^10 ends in these.
__device__ __forceinline__ u32 four_bytes(u32 low, u32 high, u32 factors) {
    return __byte_perm(fma_half2(low, factors, 0x66006600), fma_half2(high, factors, 0x66006600), 0x6420);
}

// Rotate a group of which the eight lanes of a warp that agree in lane % 4 hold eight columns each.
__device__ __forceinline__ void rotate(float (&v)[8], int lane) {
    const u32 signs = (u32)(SIGNS >> 8 * (lane / 4));
    UNROLL for (int i = 0; i < 8; ++i) v[i] = signs >> i & 1 ? -v[i] : v[i];
    UNROLL for (int apart = 1; apart < 8; apart *= 2) {
        UNROLL for (int i = 0; i < 8; ++i) {
            if (i & apart) continue;
            const float a = v[i], b = v[i + apart];
            v[i] = __fadd_rn(a, b), v[i + apart] = __fsub_rn(a, b);
        }
    }
    UNROLL for (int apart = 4; apart < 32; apart *= 2) {
        UNROLL for (int i = 0; i < 8; ++i) {
            const float other = __shfl_xor_sync(~0u, v[i], apart);
            v[i] = lane & apart ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
        }
    }
}

// Four values times a factor, rounded to whole numbers of 8 bits: a sum with 1.5 * 2^23 ends in these.
__device__ __forceinline__ u32 four_bytes(const float* v, float factor) {
    u32 n[4];
    UNROLL for (int i = 0; i < 4; ++i) n[i] = __float_as_uint(__fmaf_rn(v[i], factor, 12582912.0f));
    return __byte_perm(__byte_perm(n[0], n[1], 0x0040), __byte_perm(n[2], n[3], 0x0040), 0x5410);
}
