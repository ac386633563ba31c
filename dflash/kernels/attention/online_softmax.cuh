// Online softmax (FlashAttention-2, Dao 2023, arXiv 2307.08691): out = softmax(q k^T / sqrt(HEAD_DIM)) v, times
// sigmoid(gate) if GATED, tile by tile of keys and values.
//
// A query tile is rows times the GROUP_SIZE heads that share a KV head, rows outermost; all of them share each key and value
// that is read. The largest score and the sum of weights are float32. Values are rescaled when the largest score grows.
// Masked positions have weight zero, which changes no bit of a sum, so the result of a row does not depend on other rows.
//
// Macros: HEAD_DIM, elements of a head; GROUP_SIZE, query heads that share a KV head; KV_HEADS; TILE_KV, TILE_Q, rows of the
// tiles; TREE_MASK, 1 if the rows of a sequence may be a tree; GATED, 1 if outputs are gated.
#pragma once
#include "../gpu/include/clear.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/ptx.cuh"
#include "tiles.cuh"
#include "work_item.cuh"

#if !defined(GROUP_SIZE) || !defined(KV_HEADS) || !defined(TREE_MASK) || !defined(GATED)
#error "GROUP_SIZE, KV_HEADS, TREE_MASK and GATED must be defined"
#endif

// Causal or tree mask. With TREE_MASK, row i attends to positions below limits[i] and to the pending rows in the bits of
// above[i], both in shared memory. Without it, query start + x attends to all accepted positions, the earlier rows of its
// sequence and its own row.
struct Mask {
    int committed, all;  // accepted positions; positions that no query of the tile masks
    int start;
    const int* limits;
    const u64* above;

    __device__ __forceinline__ bool needs_mask(int position) const { return position + TILE_KV > all; }
};

// State of a thread's two queries: unnormalised outputs, largest score, sum of weights.
struct Softmax {
    float o[VALUES][4], max_score[2], sum[2];
};

// Index in the query tile of the query that a thread's sums h (0 or 1) belong to.
__device__ __forceinline__ int query_index(int h) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h; }

// `bits` shifted left by `by`, or right if `by` is negative. Any amount is allowed.
__device__ __forceinline__ u64 shifted(u64 bits, int by) {
    return by <= -64 || by >= 64 ? 0 : by < 0 ? bits >> -by : bits << by;
}

__device__ __forceinline__ void apply_mask(float (&s)[SCORES][4], int position, const Mask& mask) {
    UNROLL for (int h = 0; h < 2; ++h) {
        const int row = min(query_index(h) / GROUP_SIZE, MAX_ROWS - 1);
        const int limit = TREE_MASK ? mask.limits[row] : mask.committed + 1 + (mask.start + query_index(h)) / GROUP_SIZE;
        u64 visible = limit - position < 64 ? ~shifted(~0ull, max(limit - position, 0)) : ~0ull;
        if (TREE_MASK) visible |= shifted(mask.above[row], mask.committed - position);
        visible >>= threadIdx.x % 4 * 2;
        UNROLL for (int n = 0; n < SCORES; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                if (!(visible >> (8 * n + e) & 1)) s[n][2 * h + e] = MINUS_INFINITY;
            }
    }
}

__device__ __forceinline__ void init(Softmax& acc) {
    clear(acc.o);
    acc.max_score[0] = acc.max_score[1] = MINUS_INFINITY, acc.sum[0] = acc.sum[1] = 0.0f;
}

// Replace the scores of the tile at `position` by weights. The caller must multiply earlier values by `rescale`.
// `apply_mask` is called for tiles that are partly masked.
template <class MaskType>
__device__ __forceinline__ void online_softmax(float (&s)[SCORES][4], int position, const MaskType& mask, Softmax& acc,
                                               float (&rescale)[2]) {
    const float scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
    if (mask.needs_mask(position)) apply_mask(s, position, mask);
    UNROLL for (int h = 0; h < 2; ++h) {
        float largest = acc.max_score[h];
        UNROLL for (int n = 0; n < SCORES; ++n) largest = fmaxf(largest, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const float base = largest == MINUS_INFINITY ? 0.0f : __fmul_rn(largest, scale);
        rescale[h] = exp2_approx(__fsub_rn(__fmul_rn(acc.max_score[h], scale), base));
        acc.max_score[h] = largest;
        float added = 0.0f;
        UNROLL for (int n = 0; n < SCORES; ++n)
            UNROLL for (int e = 2 * h; e < 2 * h + 2; ++e) {
                s[n][e] = exp2_approx(__fmaf_rn(s[n][e], scale, -base));
                added = __fadd_rn(added, s[n][e]);
            }
        acc.sum[h] = __fmaf_rn(acc.sum[h], rescale[h], added);
    }
}

__device__ __forceinline__ void rescale_values(float (&o)[VALUES][4], const float (&factor)[2]) {
    UNROLL for (int n = 0; n < VALUES; ++n)
        UNROLL for (int e = 0; e < 4; ++e) o[n][e] = __fmul_rn(o[n][e], factor[e / 2]);
}

__device__ __forceinline__ void pack_weights(u32 (&p)[TILE_KV / 16][4], const float (&s)[SCORES][4]) {
    UNROLL for (int k = 0; k < TILE_KV / 16; ++k)
        UNROLL for (int e = 0; e < 4; ++e)
            p[k][e] = pack_half2(s[2 * k + e / 2][e % 2 * 2], s[2 * k + e / 2][e % 2 * 2 + 1]);
}

// Complete the sums of weights: each of four threads has a quarter.
__device__ __forceinline__ void finish_sums(Softmax& acc) {
    UNROLL for (int h = 0; h < 2; ++h) {
        acc.sum[h] = __fadd_rn(acc.sum[h], __shfl_xor_sync(~0u, acc.sum[h], 1));
        acc.sum[h] = __fadd_rn(acc.sum[h], __shfl_xor_sync(~0u, acc.sum[h], 2));
    }
}
