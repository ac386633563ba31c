// Parts of a split. Each is reckoned alone, by a warp or a warpgroup. The results of each half of the parts are added in order,
// then those of both halves, so that a row has the same bits either way.
//
// Macros: those of decode_scheduler.cuh; HEAD_DIM, elements of a head.
#pragma once
#include "../gpu/include/ptx.cuh"
#include "decode_scheduler.cuh"

#ifndef HEAD_DIM
#error "HEAD_DIM must be defined"
#endif
static_assert(TILE_KV == STEP, "a step is a tile");

constexpr int PARTS = 8, HALF = PARTS / 2;  // of a split, as many as warps of a block of decode_q8_0_warps.cu

// Factor of scores whose weights are powers of 2.
__device__ __forceinline__ float score_scale() { return 1.4426950408889634f / sqrtf((float)HEAD_DIM); }

// The tiles of part `i` of an item, maybe none. Its borders depend on the size of the split alone.
__device__ __forceinline__ KvRange part_of(const Item& item, int i) {
    KvRange part = item.kv;
    const int steps = split_steps(item.kv.committed + item.own);
    part.begin = min(item.kv.begin + steps * i / PARTS, item.kv.end);
    part.end = min(item.kv.begin + steps * (i + 1) / PARTS, item.kv.end);
    return part;
}

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
    // For PartSums.
    __device__ __forceinline__ float stored() const { return value == NONE ? MINUS_INFINITY : value; }
};

// Base score and sum of weights of a query over the parts so far.
struct PartSums {
    float largest, total;
    float before, part;  // factors of the values of the earlier parts and of the latest one

    __device__ __forceinline__ void clear() { largest = MINUS_INFINITY, total = 0.0f; }

    // Add a part. One whose positions are all masked changes nothing.
    __device__ __forceinline__ void add(float part_largest, float part_total) {
        before = 1.0f, part = 0.0f;
        if (part_largest == MINUS_INFINITY) return;
        const float scale = score_scale();
        const float most = fmaxf(largest, part_largest), base = __fmul_rn(most, scale);
        before = exp2_approx(__fsub_rn(__fmul_rn(largest, scale), base));
        part = exp2_approx(__fsub_rn(__fmul_rn(part_largest, scale), base));
        largest = most, total = __fmaf_rn(part_total, part, __fmul_rn(total, before));
    }

    // Values of all parts, with those of the latest one, for which `add` was called.
    __device__ __forceinline__ float4 values(float4 earlier, float4 latest) const {
        return make_float4(
            __fmaf_rn(latest.x, part, __fmul_rn(earlier.x, before)), __fmaf_rn(latest.y, part, __fmul_rn(earlier.y, before)),
            __fmaf_rn(latest.z, part, __fmul_rn(earlier.z, before)), __fmaf_rn(latest.w, part, __fmul_rn(earlier.w, before)));
    }
};
