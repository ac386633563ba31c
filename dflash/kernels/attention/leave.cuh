// What the queries of a block have summed over a part of their text, on its way to `combine`.
#pragma once
#include "flash.cuh"
#include "place.cuh"

// Leave what a thread's two queries have summed, in the order of place.cuh. Neighbours exchange halves of it, so that each has
// four columns of one query, the one with the number `query_of(threadIdx.x % 2)`; `is_there` tells whether anybody asks for it.
__device__ __forceinline__ void leave(const Queries& queries, int part, bool is_there, const Sums& sums, float* partial,
                                      float* stats) {
    const int odd = threadIdx.x % 2, x = query_of(odd);
    if (threadIdx.x / 32 * 16 >= queries.n) return;
    is_there &= x < queries.n;
    const size_t of_part = part_at(queries.row + (queries.start + x) / GROUP, queries.head, part);
    float* to = partial + of_part * (GROUP * HEAD) + x % GROUP * 8 + threadIdx.x % 4 / 2 * 4;
    constexpr int MANY = 4;  // at a time
#pragma unroll
    for (int start = 0; start < HEAD / 8; start += MANY) {
        float4 x4[MANY];
#pragma unroll
        for (int i = 0; i < MANY && start + i < HEAD / 8; ++i) {
            const float* o = sums.o[start + i];
            const float a = __shfl_xor_sync(~0u, odd ? o[0] : o[2], 1), b = __shfl_xor_sync(~0u, odd ? o[1] : o[3], 1);
            x4[i] = odd ? make_float4(a, b, o[2], o[3]) : make_float4(o[0], o[1], a, b);
        }
        if (!is_there) continue;
#pragma unroll
        for (int i = 0; i < MANY && start + i < HEAD / 8; ++i) *(float4*)(to + (start + i) * (8 * GROUP)) = x4[i];
    }
    if (is_there && threadIdx.x % 4 < 2) {
        const float top = odd ? sums.top[1] : sums.top[0], sum = odd ? sums.sum[1] : sums.sum[0];
        *(float2*)(stats + 2 * (of_part * GROUP + x % GROUP)) = make_float2(top, sum);
    }
}
