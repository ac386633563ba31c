// Softmax of a warpgroup over the scores of wgmma_quantized.cuh, with the base scores of base_score.cuh. A warp has 16 keys of a tile,
// a lane keys g and g + 8 of these, and queries 8 * n + 2 * t + e, with lane = 4 * g + t.
//
// Macros: those of wgmma_quantized.cuh and decode_scheduler.cuh.
#pragma once
#include "../gpu/include/mma.cuh"
#include "base_score.cuh"
#include "decode_scheduler.cuh"
#include "wgmma_quantized.cuh"

// Masks of the rows of an item, see `Mask` of online_softmax.cuh.
struct Masks {
    int limits[MAX_ROWS];
    u64 above[MAX_ROWS];
};

// What the warps of a warpgroup exchange: largest scores of a tile, or sums of weights.
using OfWarps = float[4][TILE_Q];

// State of a lane. Sums of weights are of its keys.
struct Softmax {
    BaseScore base[FRAGMENTS][2];
    float sum[FRAGMENTS][2];

    __device__ __forceinline__ void clear() {
        UNROLL for (int n = 0; n < FRAGMENTS; ++n)
            UNROLL for (int e = 0; e < 2; ++e) base[n][e].value = BaseScore::NONE, sum[n][e] = 0.0f;
    }
};

__device__ __forceinline__ void apply_mask(float (&s)[FRAGMENTS][4], int position, int committed, const Masks& masks) {
    const int lane = threadIdx.x % 32;
    int first = lane % 4 * 2;
    asm volatile("" : "+r"(first));  // or the addresses of all masks stay in registers, too many
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int row = min((first + 8 * n + e) / GROUP_SIZE, MAX_ROWS - 1), limit = masks.limits[row];
            const u64 bits = masks.above[row];
            UNROLL for (int h = 0; h < 2; ++h) {
                const int p = position + threadIdx.x % 128 / 32 * 16 + 8 * h + lane / 4, own = p - committed;
                const bool visible = p < limit || (own >= 0 && own < PENDING && bits >> own & 1);
                if (!visible) s[n][2 * h + e] = MINUS_INFINITY;
            }
        }
}

// True if the scores of a tile change the base score of any query. All warps have finished what they did before.
__device__ __forceinline__ bool changes_base(const float (&s)[FRAGMENTS][4], const Softmax& softmax) {
    bool changes = false;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) changes |= softmax.base[n][e].must_change(fmaxf(s[n][e], s[n][2 + e]));
    return !named_barrier_all<128>((int)threadIdx.x / 128 + 1, !changes);
}

// Change base scores to the largest scores of a tile where they must. `factors`: of all sums of earlier tiles.
__device__ __forceinline__ void change_base(const float (&s)[FRAGMENTS][4], Softmax& softmax, OfWarps& of_warps,
                                            float (&factors)[FRAGMENTS][2]) {
    const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x % 128 / 32;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        float2 most = make_float2(fmaxf(s[n][0], s[n][2]), fmaxf(s[n][1], s[n][3]));
        UNROLL for (int by = 4; by < 32; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        if (lane < 4) *(float2*)&of_warps[warp][8 * n + 2 * t] = most;
    }
    warpgroup_sync();  // the scores of all warps are stored
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        float2 most = *(const float2*)&of_warps[0][8 * n + 2 * t];
        UNROLL for (int i = 1; i < 4; ++i) {
            const float2 other = *(const float2*)&of_warps[i][8 * n + 2 * t];
            most.x = fmaxf(most.x, other.x), most.y = fmaxf(most.y, other.y);
        }
        UNROLL for (int e = 0; e < 2; ++e) {
            factors[n][e] = softmax.base[n][e].change(e ? most.y : most.x);
            softmax.sum[n][e] = __fmul_rn(softmax.sum[n][e], factors[n][e]);
        }
    }
}

__device__ __forceinline__ void rescale_outputs(float (&acc)[OUTPUTS][FRAGMENTS][4], int n, float even, float odd) {
    UNROLL for (int i = 0; i < OUTPUTS; ++i)
        UNROLL for (int e = 0; e < 4; ++e) acc[i][n][e] = __fmul_rn(acc[i][n][e], e % 2 ? odd : even);
}

// Store the weights of a tile, rows of queries.
__device__ __forceinline__ void store_weights(float (&s)[FRAGMENTS][4], Softmax& softmax, u8* weights) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x % 128 / 32;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        UNROLL for (int e = 0; e < 2; ++e) {
            const float shift = softmax.base[n][e].shift();
            UNROLL for (int h = 0; h < 2; ++h) s[n][2 * h + e] = BaseScore::weight(s[n][2 * h + e], shift);
            softmax.sum[n][e] = __fadd_rn(softmax.sum[n][e], __fadd_rn(s[n][e], s[n][2 + e]));
        }
        UNROLL for (int h = 0; h < 2; ++h)
            *(u32*)(weights + n * 1024 + swizzled<TILE_Q>(g, 2 * warp + h) + 4 * t) =
                transposed_8x8(pack_half2(s[n][2 * h], s[n][2 * h + 1]));
    }
    fence_async_proxy();  // wgmma reads the weights through the async proxy
}

// Store the base scores and the sums of weights of half a split.
__device__ __forceinline__ void store_totals(const Softmax& softmax, OfWarps& of_warps, float2* totals) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, x = threadIdx.x % 128;
    warpgroup_sync();  // what the warps exchanged before is no longer read
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int own = 8 * n + lane % 4 * 2 + e;
            float sum = softmax.sum[n][e];
            UNROLL for (int by = 4; by < 32; by *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, by));
            if (lane < 4) of_warps[warp][own] = sum;
            if (x < 4) totals[own].x = softmax.base[n][e].stored();
        }
    warpgroup_sync();  // the sums of all warps are stored
    if (x >= TILE_Q) return;
    float sum = of_warps[0][x];
    UNROLL for (int i = 1; i < 4; ++i) sum = __fadd_rn(sum, of_warps[i][x]);
    totals[x].y = sum;
}
