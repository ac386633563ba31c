// Prefix sum over the threads of a block.
//
// Macro: SCAN_THREADS, threads of the block, 256 by default.
#pragma once
#include "../gpu/include/types.cuh"

#ifndef SCAN_THREADS
#define SCAN_THREADS 256
#endif

// Exclusive prefix sum over the threads; the sum over all threads in `all`.
__device__ __forceinline__ int exclusive_sum(int n, int& all) {
    __shared__ int of_warp[SCAN_THREADS / 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = n;
    UNROLL for (int i = 1; i < 32; i *= 2) {
        const int before = __shfl_up_sync(~0u, sum, i);
        if (lane >= i) sum += before;
    }
    __syncthreads();  // `of_warp` of the previous call was read
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();  // the sums of all warps are stored
    all = 0;
    int first = sum - n;
    UNROLL for (int i = 0; i < SCAN_THREADS / 32; ++i) {
        if (i < warp) first += of_warp[i];
        all += of_warp[i];
    }
    return first;
}
