// Split-KV: store the unnormalised outputs and softmax statistics of one split for `combine`.
//
// Macros: those of online_softmax.cuh and partial_layout.cuh.
#pragma once
#include "online_softmax.cuh"
#include "partial_layout.cuh"

// Store the sums of a thread's two queries in the order of partial_layout.cuh. Neighbouring threads exchange halves, so that
// each has four columns of one query, `query_index(threadIdx.x % 2)`. `needed`: false if that query has no such split.
__device__ __forceinline__ void store_partial(const QueryTile& queries, int split, bool needed, const Softmax& acc,
                                              float* partial, float* stats) {
    const int odd = threadIdx.x % 2, x = query_index(odd);
    if (threadIdx.x / 32 * 16 >= queries.n) return;
    needed &= x < queries.n;
    const size_t at_partial = partial_at(queries.row + (queries.start + x) / GROUP_SIZE, queries.head, split);
    float* to = partial + at_partial * (GROUP_SIZE * HEAD_DIM) + x % GROUP_SIZE * 8 + threadIdx.x % 4 / 2 * 4;
    constexpr int IN_FLIGHT = 4;  // column blocks of 8 whose stores are in flight together
    UNROLL for (int start = 0; start < HEAD_DIM / 8; start += IN_FLIGHT) {
        float4 vectors[IN_FLIGHT];
        UNROLL for (int i = 0; i < IN_FLIGHT && start + i < HEAD_DIM / 8; ++i) {
            const float* o = acc.o[start + i];
            const float a = __shfl_xor_sync(~0u, odd ? o[0] : o[2], 1), b = __shfl_xor_sync(~0u, odd ? o[1] : o[3], 1);
            vectors[i] = odd ? make_float4(a, b, o[2], o[3]) : make_float4(o[0], o[1], a, b);
        }
        if (!needed) continue;
        UNROLL for (int i = 0; i < IN_FLIGHT && start + i < HEAD_DIM / 8; ++i)
            *(float4*)(to + (start + i) * (8 * GROUP_SIZE)) = vectors[i];
    }
    if (needed && threadIdx.x % 4 < 2) {
        const float max_score = odd ? acc.max_score[1] : acc.max_score[0], sum = odd ? acc.sum[1] : acc.sum[0];
        *(float2*)(stats + 2 * (at_partial * GROUP_SIZE + x % GROUP_SIZE)) = make_float2(max_score, sum);
    }
}
