// Values of a quantized cache, with one float16 scale for each block of 32: float16(byte * scale) of q8_0, and
// float16((number - 8) * scale) of q4_0. A stored head is HEAD_DIM signed bytes, or HEAD_DIM / 2 bytes of two numbers, then 16
// bytes of scales. Byte j of a block of q4_0 has number j in its lower half and number j + 16 in its upper one.
//
// Macros: HEAD_DIM, elements of a head; KEY_BITS and VALUE_BITS, 8 for q8_0, 4 for q4_0.
#pragma once
#include "../gpu/include/half.cuh"

#if !defined(HEAD_DIM) || !defined(KEY_BITS) || !defined(VALUE_BITS)
#error "HEAD_DIM, KEY_BITS and VALUE_BITS must be defined"
#endif
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM must be 32, 64, ... or 256");
static_assert((KEY_BITS == 8 || KEY_BITS == 4) && (VALUE_BITS == 8 || VALUE_BITS == 4), "q8_0 or q4_0");

constexpr int BLOCKS = HEAD_DIM / 32;

// Two float16 of the same bits.
__device__ __forceinline__ u32 both(u16 scale) { return scale | (u32)scale << 16; }

// Values of bytes 0 and 1 of a word of q8_0, times the two float16 of `scales`. A byte b + 128 below the exponent of 1024 is the
// float16 1024 + 128 + b, so the subtraction is exact.
__device__ __forceinline__ u32 low_values(u32 word, u32 scales) {
    return mul_half2(sub_half2(__byte_perm(word ^ 0x80808080, 0x64646464, 0x4140), 0x64806480), scales);
}

// Values of bytes 2 and 3.
__device__ __forceinline__ u32 high_values(u32 word, u32 scales) {
    return mul_half2(sub_half2(__byte_perm(word ^ 0x80808080, 0x64646464, 0x4342), 0x64806480), scales);
}

// Values of the lower halves of bytes 0 and 2 of a word of q4_0, times the two float16 of `scales`: 1024 + n - 1032, exact.
__device__ __forceinline__ u32 lower_values(u32 word, u32 scales) {
    return mul_half2(sub_half2((word & 0x000f000f) | 0x64006400, 0x64086408), scales);
}

// Values of the upper halves: (1024 + 16 * n) / 16 - 72, exact.
__device__ __forceinline__ u32 upper_values(u32 word, u32 scales) {
    return mul_half2(fma_half2((word & 0x00f000f0) | 0x64006400, 0x2c002c00, 0xd480d480), scales);
}

// A stored head. BLOCK and VALUES: bytes of a block and of all values, after which the scales begin. HEAD: all bytes.
template <int BITS>
struct Stored {
    static constexpr int BLOCK = 4 * BITS, VALUES = BLOCK * BLOCKS, HEAD = VALUES + 16;
    static constexpr bool BYTES = BITS == 8;

    // Four values of a word, as two pairs. Of q8_0, `first` has bytes 0 and 1, `second` bytes 2 and 3. Of q4_0, `first` has the
    // lower halves (`half` 0) or upper halves (1) of bytes 0 and 2, `second` those of bytes 1 and 3.
    static __device__ __forceinline__ void unpack(u32 word, int half, u32 scales, u32& first, u32& second) {
        if constexpr (BYTES) first = low_values(word, scales), second = high_values(word, scales);
        else if (half) first = upper_values(word, scales), second = upper_values(word >> 8, scales);
        else first = lower_values(word, scales), second = lower_values(word >> 8, scales);
    }

    // Four float16 in the order in which `unpack` returns the values of bytes 0, 1, 2 and 3.
    static __device__ __forceinline__ uint2 in_order(u32 low, u32 high) {
        if constexpr (BYTES) return make_uint2(low, high);
        else return make_uint2(__byte_perm(low, high, 0x5410), __byte_perm(low, high, 0x7632));
    }

    // Words whose pairs are those of bytes 0 and 1, or of bytes 2 and 3, of two words.
    static __device__ __forceinline__ u32 pairs_of_low(u32 x, u32 y) { return __byte_perm(x, y, BYTES ? 0x5140 : 0x5410); }
    static __device__ __forceinline__ u32 pairs_of_high(u32 x, u32 y) { return __byte_perm(x, y, BYTES ? 0x7362 : 0x7632); }
};

using Keys = Stored<KEY_BITS>;
using Values = Stored<VALUE_BITS>;

constexpr int LARGER_HEAD = Keys::HEAD > Values::HEAD ? Keys::HEAD : Values::HEAD;  // bytes
