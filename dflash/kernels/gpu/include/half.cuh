// float16 as a 16-bit integer, and pairs of float16 (half2) as a 32-bit word, with inline PTX, so that cuda_fp16.h is not
// needed.
#pragma once
#include "types.cuh"

__device__ __forceinline__ float to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// `to_half` of `f` clamped to [-65504, 65504]. NaN stays NaN.
__device__ __forceinline__ u16 half_saturated(float f) {
    asm("min.NaN.f32 %0, %0, 0f477FE000;" : "+f"(f));
    asm("max.NaN.f32 %0, %0, 0fC77FE000;" : "+f"(f));
    return to_half(f);
}

// Four float16, the first one in the lowest bits, each `half_saturated`.
__device__ __forceinline__ uint2 half4_saturated(float a, float b, float c, float d) {
    return make_uint2(half_saturated(a) | (u32)half_saturated(b) << 16, half_saturated(c) | (u32)half_saturated(d) << 16);
}

// `low` in the lower half, `high` in the upper half, rounded one by one.
__device__ __forceinline__ u32 to_half2(float low, float high) { return to_half(low) | (u32)to_half(high) << 16; }

// The same value as `to_half2`, as one instruction.
__device__ __forceinline__ u32 pack_half2(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// The rounding error of `rounded` = half2(low, high), as half2: `rounded` plus the result approximates the floats.
__device__ __forceinline__ u32 half2_lo(u32 rounded, float low, float high) {
    return pack_half2(low - to_float((u16)rounded), high - to_float((u16)(rounded >> 16)));
}

__device__ __forceinline__ u32 add_half2(u32 a, u32 b) {
    u32 d;
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ u32 sub_half2(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ u32 mul_half2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ u32 fma_half2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}
