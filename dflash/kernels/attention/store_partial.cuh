// Split-KV: store the unnormalised outputs and softmax statistics of one split for `combine`.
//
// Macros: those of online_softmax.cuh and partial_layout.cuh.
#pragma once
#include "online_softmax.cuh"
#include "partial_layout.cuh"

// Store the sums of a thread's two queries in the order of partial_layout.cuh. Neighbours exchange halves of them, so that each has
// four columns of one query, `query_index(threadIdx.x % 2)`; `is_there` tells whether that query needs this split.
__device__ __forceinline__ void store_partial(const QueryTile& queries, int split, bool is_there, const Softmax& acc,
                                              float* partial, float* stats) {
    const int odd = threadIdx.x % 2, x = query_index(odd);
    if (threadIdx.x / 32 * 16 >= queries.n) return;
    is_there &= x < queries.n;
    const size_t at_partial = partial_at(queries.row + (queries.start + x) / GROUP_SIZE, queries.head, split);
    float* to = partial + at_partial * (GROUP_SIZE * HEAD_DIM) + x % GROUP_SIZE * 8 + threadIdx.x % 4 / 2 * 4;
    constexpr int AT_ONCE = 4;  // at a time
#pragma unroll
    for (int start = 0; start < HEAD_DIM / 8; start += AT_ONCE) {
        float4 x4[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE && start + i < HEAD_DIM / 8; ++i) {
            const float* o = acc.o[start + i];
            const float a = __shfl_xor_sync(~0u, odd ? o[0] : o[2], 1), b = __shfl_xor_sync(~0u, odd ? o[1] : o[3], 1);
            x4[i] = odd ? make_float4(a, b, o[2], o[3]) : make_float4(o[0], o[1], a, b);
        }
        if (!is_there) continue;
#pragma unroll
        for (int i = 0; i < AT_ONCE && start + i < HEAD_DIM / 8; ++i) *(float4*)(to + (start + i) * (8 * GROUP_SIZE)) = x4[i];
    }
    if (is_there && threadIdx.x % 4 < 2) {
        const float max_score = odd ? acc.max_score[1] : acc.max_score[0], sum = odd ? acc.sum[1] : acc.sum[0];
        *(float2*)(stats + 2 * (at_partial * GROUP_SIZE + x % GROUP_SIZE)) = make_float2(max_score, sum);
    }
}
