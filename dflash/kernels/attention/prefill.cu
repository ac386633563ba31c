// Attention of text: prompt.cuh says which tiles of queries there are, flash.cuh what they do.
//
// Grid: at least (tiles of queries of all sequences) * KV; block and shared memory: together.cuh.
// Bound by products: 4 * HEAD for each pair of a query and a position.
#define TREES 0
#include "../gpu/include/activation.cuh"
#include "../gpu/include/pdl.cuh"
#include "together.cuh"
#include "prompt.cuh"

// Write one of a thread's two queries whose sums are those of all its text.
__device__ __forceinline__ void finish(const Sums& sums, int h, size_t at, const float* gate, u16* out) {
    const int d = threadIdx.x % 4 * 2;
    float2 g[HEAD / 8];
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
        if (GATED) g[n] = __ldg((const float2*)(gate + (2 * at + 1) * HEAD + 8 * n + d));
    }
#pragma unroll
    for (int n = 0; n < HEAD / 8; ++n) {
        float2 x = make_float2(__fdiv_rn(sums.o[n][2 * h], sums.sum[h]), __fdiv_rn(sums.o[n][2 * h + 1], sums.sum[h]));
        if (GATED) x = make_float2(mul_sigmoid_rn(x.x, g[n].x), mul_sigmoid_rn(x.y, g[n].y));
        *(u32*)(out + at * HEAD + 8 * n + d) = half_saturated(x.x) | (u32)half_saturated(x.y) << 16;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill(const unsigned short* q, const unsigned short* k, const unsigned short* v, const int* counts, const int* first,
        const int* length, const int* pages, int max_pages, const float* gate, unsigned short* out) {
    extern __shared__ u8 memory[];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, slots = query_tile + QUERY_TILE;
    Text text;
    Queries queries;
    const bool found = find(blockIdx.x, text, queries, counts[1], first, length, pages, max_pages);
    wait_on_dependent_grids();
    if (!found) return;
    for (int n = 0; n < SLOTS; ++n) fetch(slots, k, v, text, n);
    store_queries(query_tile, q, queries);
    Sums sums;
    read(k, v, text, sight_of(text, queries), threadIdx.x / 32 * 16 >= queries.n, query_tile, slots, sums);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        if (query_of(h) < queries.n) finish(sums, h, queries.at(query_of(h)), gate, out);
    }
}
