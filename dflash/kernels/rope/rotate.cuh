// One head of a row, by a warp: x = x / sqrt(mean(x^2) + eps) * w, then x[j], x[j + PAIRS] =
// x[j] cos - x[j + PAIRS] sin, x[j + PAIRS] cos + x[j] sin; values are written as they are.
//
// Macros: HEAD, numbers of a head; PAIRS; HALF, whether halves are written.
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(HEAD) || !defined(PAIRS) || !defined(HALF)
#error "HEAD, PAIRS and HALF must be defined"
#endif
static_assert(2 * PAIRS <= HEAD && HEAD % 16 == 0, "pairs of a head of 16, 32, ... numbers");

constexpr int PAGE = 256, WARPS = 4, OWN = HEAD / 4, EACH = (OWN + 31) / 32;  // fours of numbers, of a head and a lane
constexpr int TURNS = (PAIRS + 31) / 32;

#if HALF
typedef unsigned short Kept;
__device__ __forceinline__ void keep(u16* to, float4 x) {
    *(uint2*)to = make_uint2(half_saturated(x.x) | (u32)half_saturated(x.y) << 16,
                             half_saturated(x.z) | (u32)half_saturated(x.w) << 16);
}
#else
typedef float Kept;
__device__ __forceinline__ void keep(float* to, float4 x) { *(float4*)to = x; }
#endif

// Which place of a cache a row of a sequence has.
__device__ __forceinline__ size_t place_of(int row, const int* first, const int* sequence, const int* length, const int* pages,
                                           int max_pages) {
    const int s = sequence[row], index = length[s] + row - first[s];
    return (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
}

// Gains, which no kernel writes, are read before the wait.
struct Gains {
    float4 of[EACH];

    __device__ __forceinline__ Gains(const float* gains, int lane) {
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i < OWN) of[i] = ((const float4*)gains)[lane + 32 * i];
        }
    }
};

// Write a head; `turned` is a line of shared memory. Cosines and sines are those of the row.
__device__ __forceinline__ void write_head(const float4* from, Kept* to, const Gains& gains, bool turns, const float* cosines,
                                           const float* sines, float eps, float4* turned, int lane) {
    float4 x[EACH];
    float squares = 0.0f, c[TURNS], s[TURNS];
#pragma unroll
    for (int i = 0; i < TURNS; ++i) {
        const bool own = turns && lane + 32 * i < PAIRS;
        c[i] = own ? cosines[lane + 32 * i] : 0.0f;
        s[i] = own ? sines[lane + 32 * i] : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        x[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (lane + 32 * i < OWN) x[i] = from[lane + 32 * i];
        squares = __fmaf_rn(x[i].x, x[i].x, __fmaf_rn(x[i].y, x[i].y, squares));
        squares = __fmaf_rn(x[i].z, x[i].z, __fmaf_rn(x[i].w, x[i].w, squares));
    }
    if (turns) {
        squares = warp_sum(squares);
        const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)HEAD), eps)));
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i >= OWN) continue;
            const float4 gain = gains.of[i];
            x[i].x = __fmul_rn(__fmul_rn(x[i].x, scale), gain.x), x[i].y = __fmul_rn(__fmul_rn(x[i].y, scale), gain.y);
            x[i].z = __fmul_rn(__fmul_rn(x[i].z, scale), gain.z), x[i].w = __fmul_rn(__fmul_rn(x[i].w, scale), gain.w);
            turned[lane + 32 * i] = x[i];
        }
        __syncwarp();
        float* own = (float*)turned;
#pragma unroll
        for (int i = 0; i < TURNS; ++i) {
            const int j = lane + 32 * i;
            if (j >= PAIRS) continue;
            const float left = own[j], right = own[j + PAIRS];
            own[j] = __fsub_rn(__fmul_rn(left, c[i]), __fmul_rn(right, s[i]));
            own[j + PAIRS] = __fadd_rn(__fmul_rn(right, c[i]), __fmul_rn(left, s[i]));
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (lane + 32 * i < OWN) x[i] = turned[lane + 32 * i];
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (lane + 32 * i < OWN) keep(to + 4 * (lane + 32 * i), x[i]);
    }
}
