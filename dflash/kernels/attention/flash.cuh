// What queries make of their text: out = softmax(q k^T / sqrt(HEAD)) v, times sigmoid(gate).
//
// A tile of queries is rows times the GROUP heads that read one head of the cache, rows outermost; all share each key and value
// that is read. It meets the text in tiles of KEYS positions; largest score and sum of weights are kept in float32, and values
// are rescaled when the largest grows. What a row must not see has weight zero, which leaves every bit of the sums as it was,
// so a row's bits depend on no other row.
//
// Macros: HEAD, GROUP, KV, the shape of the heads; KEYS, QUERIES, the tiles; TREES, whether rows may fork; GATED.
// To be included after the products.
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/ptx.cuh"
#include "tiles.cuh"

#if !defined(GROUP) || !defined(KV) || !defined(TREES) || !defined(GATED)
#error "GROUP, KV, TREES and GATED must be defined"
#endif
static_assert(GROUP <= QUERIES, "the queries of a row fit in a tile");

constexpr int PAGE = 256, PENDING = 64, HEADS = KV * GROUP;
constexpr int MOST_ROWS = QUERIES / GROUP < PENDING ? QUERIES / GROUP : PENDING;  // of a tile, if pending
#define NOTHING __int_as_float(0xff800000)

// Queries start, start + 1, ... of the rows of a sequence, the first of which is `row` of the batch.
struct Queries {
    int row, start, n, head;

    __device__ __forceinline__ size_t at(int x) const {
        return (size_t)(row + (start + x) / GROUP) * HEADS + head * GROUP + (start + x) % GROUP;
    }
};

// Positions begin * KEYS ... of a sequence, of which `committed` are text and `written` are in the cache.
struct Text {
    const int* pages;
    int head, begin, end, committed, written;
};

// What rows see: positions below `limits` of theirs, and of pending rows those in `above` of theirs (TREES, in shared memory);
// else query `start` + x sees one position more than its row has rows before it in the sequence.
struct Sight {
    int committed, all;  // positions; positions that all queries of the block see
    int start;
    const int* limits;
    const u64* above;

    __device__ __forceinline__ bool is_partial(int position) const { return position + KEYS > all; }
};

struct Sums {
    float o[VALUES][4], top[2], sum[2];
};

// The two queries of a thread, of all that the threads of a block have.
__device__ __forceinline__ int query_of(int h) { return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + 8 * h; }

// `bits`, moved `by` places up, or down if negative; what falls off the ends is lost.
__device__ __forceinline__ u64 moved(u64 bits, int by) {
    return by <= -64 || by >= 64 ? 0 : by < 0 ? bits >> -by : bits << by;
}

__device__ __forceinline__ void hide(float (&s)[SCORES][4], int position, const Sight& sight) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = min(query_of(h) / GROUP, MOST_ROWS - 1);
        const int limit = TREES ? sight.limits[row] : sight.committed + 1 + (sight.start + query_of(h)) / GROUP;
        u64 seen = limit - position < 64 ? ~moved(~0ull, max(limit - position, 0)) : ~0ull;
        if (TREES) seen |= moved(sight.above[row], sight.committed - position);
        seen >>= threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < SCORES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (!(seen >> (8 * n + e) & 1)) s[n][2 * h + e] = NOTHING;
            }
    }
}

__device__ __forceinline__ void clear(Sums& sums) {
#pragma unroll
    for (int n = 0; n < VALUES; ++n) sums.o[n][0] = sums.o[n][1] = sums.o[n][2] = sums.o[n][3] = 0.0f;
    sums.top[0] = sums.top[1] = NOTHING, sums.sum[0] = sums.sum[1] = 0.0f;
}

// Scores of the tile at `position` to weights; older values are to be multiplied by `rescale`. What is not seen is for `hide` of
// the sight to tell, in tiles that are seen in part.
template <class View>
__device__ __forceinline__ void soften(float (&s)[SCORES][4], int position, const View& sight, Sums& sums,
                                       float (&rescale)[2]) {
    const float scale = 1.4426950408889634f / sqrtf((float)HEAD);
    if (sight.is_partial(position)) hide(s, position, sight);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        float most = sums.top[h];
#pragma unroll
        for (int n = 0; n < SCORES; ++n) most = fmaxf(most, fmaxf(s[n][2 * h], s[n][2 * h + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == NOTHING ? 0.0f : __fmul_rn(most, scale);
        rescale[h] = exp2_approx(__fsub_rn(__fmul_rn(sums.top[h], scale), base));
        sums.top[h] = most;
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < SCORES; ++n)
#pragma unroll
            for (int e = 2 * h; e < 2 * h + 2; ++e) {
                s[n][e] = exp2_approx(__fmaf_rn(s[n][e], scale, -base));
                added = __fadd_rn(added, s[n][e]);
            }
        sums.sum[h] = __fmaf_rn(sums.sum[h], rescale[h], added);
    }
}

__device__ __forceinline__ void multiply_all(float (&o)[VALUES][4], const float (&factor)[2]) {
#pragma unroll
    for (int n = 0; n < VALUES; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) o[n][e] = __fmul_rn(o[n][e], factor[e / 2]);
}

__device__ __forceinline__ void pack(u32 (&p)[KEYS / 16][4], const float (&s)[SCORES][4]) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k)
#pragma unroll
        for (int e = 0; e < 4; ++e) p[k][e] = pack_half2(s[2 * k + e / 2][e % 2 * 2], s[2 * k + e / 2][e % 2 * 2 + 1]);
}

// Sums of the weights, of which each thread has a quarter.
__device__ __forceinline__ void complete(Sums& sums) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        sums.sum[h] = __fadd_rn(sums.sum[h], __shfl_xor_sync(~0u, sums.sum[h], 1));
        sums.sum[h] = __fadd_rn(sums.sum[h], __shfl_xor_sync(~0u, sums.sum[h], 2));
    }
}
