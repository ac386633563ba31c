// Store a head as q8_0 or q4_0, rounded as in llama.cpp, with one float16 scale for each block of 32 in the last 16 bytes.
//
// q8_0: HEAD_DIM signed bytes. Scale = max|x| / 127, byte = round(x * (1 / scale)) with halves away from zero.
// q4_0: HEAD_DIM / 2 bytes; byte j of a block has number j in its lower half and number j + 16 in its upper one. Scale = m / -8
// with the element m of largest magnitude, number = min(15, trunc(x * (1 / scale) + 8.5)).
// Stored scales are at most 515.5 and 8188 in magnitude, so that all values are finite in float16.
//
// Macros: those of head.cuh.
#pragma once
#include "head.cuh"

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM must be 32, 64, ... or 256");

constexpr int BLOCKS = HEAD_DIM / 32;

// Of the eight lanes that hold a block.
template <class Choose>
__device__ __forceinline__ float of_block(float4 x, const Choose& choose) {
    float found = choose(choose(x.x, x.y), choose(x.z, x.w));
    UNROLL for (int by = 4; by; by /= 2) found = choose(found, __shfl_xor_sync(~0u, found, by));
    return found;
}

__device__ __forceinline__ float inverse_of(float scale) { return scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, scale); }

// Both are called by a whole warp.
__device__ __forceinline__ void store_head_q8_0(u8* to, const float4 (&x)[VECTORS_PER_LANE], int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        const int vector = lane + 32 * i;
        const float largest = of_block(x[i], [](float a, float b) { return fmaxf(fabsf(a), fabsf(b)); });
        const float scale = __fdiv_rn(largest, 127.0f), inverse = inverse_of(scale);
        const auto byte = [&](float value) { return (u32)(u8)(int)roundf(__fmul_rn(value, inverse)); };
        if (vector >= VECTORS) continue;
        *(u32*)(to + 4 * vector) = byte(x[i].x) | byte(x[i].y) << 8 | byte(x[i].z) << 16 | byte(x[i].w) << 24;
        if (vector % 8 == 0) *(u16*)(to + HEAD_DIM + vector / 4) = to_half(fminf(scale, 515.5f));
    }
    if (lane >= BLOCKS && lane < 8) *(u16*)(to + HEAD_DIM + 2 * lane) = 0;
}

__device__ __forceinline__ void store_head_q4_0(u8* to, const float4 (&x)[VECTORS_PER_LANE], int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        const int vector = lane + 32 * i;
        const float high = of_block(x[i], [](float a, float b) { return fmaxf(a, b); });
        const float low = of_block(x[i], [](float a, float b) { return fminf(a, b); });
        const float scale = __fdiv_rn(-low >= high ? low : high, -8.0f), inverse = inverse_of(scale);
        const auto number = [&](float value) {
            return (u32)min((int)__fadd_rn(__fmul_rn(value, inverse), 8.5f), 15);
        };
        const u32 own = number(x[i].x) | number(x[i].y) << 8 | number(x[i].z) << 16 | number(x[i].w) << 24;
        const u32 upper = __shfl_xor_sync(~0u, own, 4);  // of elements 16 further on
        if (vector >= VECTORS) continue;
        if (vector % 8 < 4) *(u32*)(to + vector / 8 * 16 + vector % 4 * 4) = own | upper << 4;
        if (vector % 8 == 0) *(u16*)(to + HEAD_DIM / 2 + vector / 4) = to_half(fmaxf(fminf(scale, 8188.0f), -8188.0f));
    }
    if (lane >= BLOCKS && lane < 8) *(u16*)(to + HEAD_DIM / 2 + 2 * lane) = 0;
}

// Store head `head` of a cache of BITS bits for each value.
template <int BITS>
__device__ __forceinline__ void store_head_quantized(u8* cache, size_t head, const float4 (&x)[VECTORS_PER_LANE], int lane) {
    u8* to = cache + head * (HEAD_DIM * BITS / 8 + 16);
    if constexpr (BITS == 8) store_head_q8_0(to, x, lane);
    else store_head_q4_0(to, x, lane);
}
