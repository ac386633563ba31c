// Store a head as q8_0: HEAD_DIM signed bytes, then 16 bytes with one float16 scale for each block of 32. Scale = max|x| /
// 127, byte = round(x * (1 / scale)) with halves away from zero, as in llama.cpp; the stored scale is at most 515.5, so that
// all values are finite in float16.
//
// Macros: those of rotate.cuh.
#pragma once
#include "rotate.cuh"

static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 256, "HEAD_DIM must be 32, 64, ... or 256");

constexpr int BLOCKS = HEAD_DIM / 32, HEAD_BYTES = HEAD_DIM + 16;

// Called by a whole warp; eight neighbouring lanes hold a block.
__device__ __forceinline__ void store_head_q8_0(u8* to, const float4 (&x)[VECTORS_PER_LANE], int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        const int vector = lane + 32 * i;
        float largest = fmaxf(fmaxf(fabsf(x[i].x), fabsf(x[i].y)), fmaxf(fabsf(x[i].z), fabsf(x[i].w)));
        UNROLL for (int by = 4; by; by /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, by));
        const float scale = __fdiv_rn(largest, 127.0f), inverse = scale == 0.0f ? 0.0f : __fdiv_rn(1.0f, scale);
        const auto byte = [&](float value) { return (u32)(u8)(int)roundf(__fmul_rn(value, inverse)); };
        if (vector >= VECTORS) continue;
        *(u32*)(to + 4 * vector) = byte(x[i].x) | byte(x[i].y) << 8 | byte(x[i].z) << 16 | byte(x[i].w) << 24;
        if (vector % 8 == 0) *(u16*)(to + HEAD_DIM + vector / 4) = to_half(fminf(scale, 515.5f));
    }
    if (lane >= BLOCKS && lane < 8) *(u16*)(to + HEAD_DIM + 2 * lane) = 0;
}
