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

// The tiles of part `i` of an item, maybe none. Its borders depend on the size of the split alone.
__device__ __forceinline__ KvRange part_of(const Item& item, int i) {
    KvRange part = item.kv;
    const int steps = split_steps(item.kv.committed + item.own);
    part.begin = min(item.kv.begin + steps * i / PARTS, item.kv.end);
    part.end = min(item.kv.begin + steps * (i + 1) / PARTS, item.kv.end);
    return part;
}

// Largest score and sum of weights of a query over the parts so far.
struct PartSums {
    float largest, total;
    float before, part;  // factors of the values of the earlier parts and of the latest one

    __device__ __forceinline__ void clear() { largest = MINUS_INFINITY, total = 0.0f; }

    // Add a part. One whose positions are all masked changes nothing.
    __device__ __forceinline__ void add(float part_largest, float part_total) {
        before = 1.0f, part = 0.0f;
        if (part_largest == MINUS_INFINITY) return;
        const float scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
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
