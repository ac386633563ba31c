// Online softmax whose largest score is replaced seldom.
//
// Macro: HEAD_DIM, elements of a head.
#pragma once
#include "../gpu/include/ptx.cuh"
#include "work_item.cuh"

#ifndef HEAD_DIM
#error "HEAD_DIM must be defined"
#endif

// Factor of scores whose weights are powers of 2.
__device__ __forceinline__ float score_scale() { return 1.4426950408889634f / sqrtf((float)HEAD_DIM); }

// The score whose weight is 1. It changes only if the scores of a tile are so much larger that weights pass 2^8, as in
// FlashAttention-4, since then all sums so far are rescaled. A query's own scores decide, so its bits depend on no other.
struct BaseScore {
    static constexpr float NONE = -1e30f;  // before the first score
    float value;

    // `largest`: of the scores of a tile, or of some of them.
    __device__ __forceinline__ bool must_change(float largest) const {
        return largest > __fadd_rn(value, 8.0f / score_scale());
    }
    // Returns the factor of sums so far.
    __device__ __forceinline__ float change(float largest) {
        if (!must_change(largest)) return 1.0f;
        const float factor = exp2_approx(__fsub_rn(__fmul_rn(value, score_scale()), __fmul_rn(largest, score_scale())));
        value = largest;
        return factor;
    }
    // Minus the exponent of 2 of the base score.
    __device__ __forceinline__ float shift() const { return -__fmul_rn(value, score_scale()); }
    static __device__ __forceinline__ float weight(float score, float shift) {
        return exp2_approx(__fmaf_rn(score, score_scale(), shift));
    }
    // Minus infinity before the first score.
    __device__ __forceinline__ float stored() const { return value == NONE ? MINUS_INFINITY : value; }
};
