// Bias, RMS norm and rotary embedding of one head of a row, by one warp. Norm: x = x / sqrt(mean(x^2) + eps) * w. Rotation,
// for j < ROTARY_PAIRS:
//   x[j], x[j + ROTARY_PAIRS] = x[j] cos - x[j + ROTARY_PAIRS] sin, x[j + ROTARY_PAIRS] cos + x[j] sin
// Value heads are not rotated, and normed in some models only.
//
// Macros: HEAD_DIM, elements of a head; ROTARY_PAIRS, rotated pairs of a head; TO_HALF, 1 to store float16, 0 to store
// float32; NORMED, 0 for query and key heads without a norm, 1 unless defined; BIASED, 1 if a bias is added to each head before
// its norm, 0 unless defined.
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(HEAD_DIM) || !defined(ROTARY_PAIRS) || !defined(TO_HALF)
#error "HEAD_DIM, ROTARY_PAIRS and TO_HALF must be defined"
#endif
#ifndef NORMED
#define NORMED 1
#endif
#ifndef BIASED
#define BIASED 0
#endif
static_assert(2 * ROTARY_PAIRS <= HEAD_DIM && HEAD_DIM % 16 == 0, "pairs of a head of 16, 32, ... numbers");

constexpr int VECTORS = HEAD_DIM / 4, VECTORS_PER_LANE = (VECTORS + 31) / 32;  // float4 of a head; of a lane
constexpr int PAIRS_PER_LANE = (ROTARY_PAIRS + 31) / 32;

#if TO_HALF
typedef unsigned short Stored;
__device__ __forceinline__ void store(u16* to, float4 x) { *(uint2*)to = half4_saturated(x.x, x.y, x.z, x.w); }
#else
typedef float Stored;
__device__ __forceinline__ void store(float* to, float4 x) { *(float4*)to = x; }
#endif

// A lane's part of the norm weights or of the bias of a head, if it is USED. No kernel writes them, so they may be loaded before
// `wait_on_dependent_grids`.
template <bool USED>
struct HeadWeights {
    float4 of[VECTORS_PER_LANE];

    __device__ __forceinline__ HeadWeights(const float* weights, int lane) {
        UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
            if (USED && lane + 32 * i < VECTORS) of[i] = ((const float4*)weights)[lane + 32 * i];
        }
    }
};
typedef HeadWeights<NORMED> Gains;
typedef HeadWeights<BIASED> Bias;

// Factor of a norm of one head, the same in all lanes.
__device__ __forceinline__ float norm_factor(float squares, float eps) {
    squares = warp_sum(squares);
    return __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(squares, (float)HEAD_DIM), eps)));
}

// A lane's part of the cosines and sines of a row.
struct LaneAngles {
    float c[PAIRS_PER_LANE], s[PAIRS_PER_LANE];

    __device__ __forceinline__ LaneAngles(const float* cosines, const float* sines, bool needed, int lane) {
        UNROLL for (int i = 0; i < PAIRS_PER_LANE; ++i) {
            const bool own = needed && lane + 32 * i < ROTARY_PAIRS;
            c[i] = own ? cosines[lane + 32 * i] : 0.0f;
            s[i] = own ? sines[lane + 32 * i] : 0.0f;
        }
    }
};

__device__ __forceinline__ void load_vectors(float4 (&x)[VECTORS_PER_LANE], const float4* from, int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i)
        x[i] = lane + 32 * i < VECTORS ? from[lane + 32 * i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

__device__ __forceinline__ void add_bias(float4 (&x)[VECTORS_PER_LANE], const Bias& bias, int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        if (!BIASED || lane + 32 * i >= VECTORS) continue;
        const float4 added = bias.of[i];
        x[i].x = __fadd_rn(x[i].x, added.x), x[i].y = __fadd_rn(x[i].y, added.y);
        x[i].z = __fadd_rn(x[i].z, added.z), x[i].w = __fadd_rn(x[i].w, added.w);
    }
}

// Sum of a lane's squares.
__device__ __forceinline__ float sum_squares(const float4 (&x)[VECTORS_PER_LANE]) {
    float squares = 0.0f;
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        squares = __fmaf_rn(x[i].x, x[i].x, __fmaf_rn(x[i].y, x[i].y, squares));
        squares = __fmaf_rn(x[i].z, x[i].z, __fmaf_rn(x[i].w, x[i].w, squares));
    }
    return squares;
}

// Norm (if NORMED) and rotate one head. `rotated` is the warp's scratch of HEAD_DIM floats in shared memory.
__device__ __forceinline__ void norm_and_rotate(float4 (&x)[VECTORS_PER_LANE], const Gains& gains, const LaneAngles& angles,
                                                float eps, float4* rotated, int lane) {
    const float scale = NORMED ? norm_factor(sum_squares(x), eps) : 1.0f;
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        if (lane + 32 * i >= VECTORS) continue;
        if constexpr (NORMED) {
            const float4 gain = gains.of[i];
            x[i].x = __fmul_rn(__fmul_rn(x[i].x, scale), gain.x), x[i].y = __fmul_rn(__fmul_rn(x[i].y, scale), gain.y);
            x[i].z = __fmul_rn(__fmul_rn(x[i].z, scale), gain.z), x[i].w = __fmul_rn(__fmul_rn(x[i].w, scale), gain.w);
        }
        rotated[lane + 32 * i] = x[i];
    }
    __syncwarp();  // the pairs of an element belong to different lanes
    float* own = (float*)rotated;
    UNROLL for (int i = 0; i < PAIRS_PER_LANE; ++i) {
        const int j = lane + 32 * i;
        if (j >= ROTARY_PAIRS) continue;
        const float left = own[j], right = own[j + ROTARY_PAIRS];
        own[j] = __fsub_rn(__fmul_rn(left, angles.c[i]), __fmul_rn(right, angles.s[i]));
        own[j + ROTARY_PAIRS] = __fadd_rn(__fmul_rn(right, angles.c[i]), __fmul_rn(left, angles.s[i]));
    }
    __syncwarp();  // the rotation is complete
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        if (lane + 32 * i < VECTORS) x[i] = rotated[lane + 32 * i];
    }
}

// Load one head into x, with its bias, normed and rotated if `rotates`. `cosines` and `sines` are those of the row.
__device__ __forceinline__ void load_head(float4 (&x)[VECTORS_PER_LANE], const float4* from, const Bias& bias,
                                          const Gains& gains, bool rotates, const float* cosines, const float* sines,
                                          float eps, float4* rotated, int lane) {
    const LaneAngles angles(cosines, sines, rotates, lane);
    load_vectors(x, from, lane);
    add_bias(x, bias, lane);
    if (rotates) norm_and_rotate(x, gains, angles, eps, rotated, lane);
}

// Load one head into x, normed without a gain.
__device__ __forceinline__ void load_normed(float4 (&x)[VECTORS_PER_LANE], const float4* from, float eps, int lane) {
    load_vectors(x, from, lane);
    const float scale = norm_factor(sum_squares(x), eps);
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        x[i].x = __fmul_rn(x[i].x, scale), x[i].y = __fmul_rn(x[i].y, scale);
        x[i].z = __fmul_rn(x[i].z, scale), x[i].w = __fmul_rn(x[i].w, scale);
    }
}

__device__ __forceinline__ void store_head(Stored* to, const float4 (&x)[VECTORS_PER_LANE], int lane) {
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        if (lane + 32 * i < VECTORS) store(to + 4 * (lane + 32 * i), x[i]);
    }
}
