// Values of a q8_0 cache: float16(byte * scale), with one float16 scale for each block of 32 signed bytes. A stored head is
// HEAD_DIM bytes, then 16 bytes of scales.
//
// Macro: HEAD_DIM, elements of a head.
#pragma once
#include "../gpu/include/half.cuh"

#ifndef HEAD_DIM
#error "HEAD_DIM must be defined"
#endif
static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM must be 32, 64, ... or 256");

constexpr int BLOCKS = HEAD_DIM / 32, HEAD_BYTES = HEAD_DIM + 16;

// Two float16 of the same bits.
__device__ __forceinline__ u32 both(u16 scale) { return scale | (u32)scale << 16; }

// Values of bytes 0 and 1 of a word, times the two float16 of `scales`. A byte b + 128 below the exponent of 1024 is the
// float16 1024 + 128 + b, so the subtraction is exact.
__device__ __forceinline__ u32 low_values(u32 word, u32 scales) {
    return mul_half2(sub_half2(__byte_perm(word ^ 0x80808080, 0x64646464, 0x4140), 0x64806480), scales);
}

// Values of bytes 2 and 3.
__device__ __forceinline__ u32 high_values(u32 word, u32 scales) {
    return mul_half2(sub_half2(__byte_perm(word ^ 0x80808080, 0x64646464, 0x4342), 0x64806480), scales);
}
