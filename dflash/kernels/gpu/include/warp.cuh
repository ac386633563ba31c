// Reductions over the 32 lanes of a warp. The order of the additions is fixed, so results are reproducible bit for bit.
#pragma once
#include "types.cuh"

// Sum over the warp, the same in all lanes: a butterfly of 16, 8, 4, 2, 1.
__device__ __forceinline__ float warp_sum(float x) {
    UNROLL for (int i = 16; i; i /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// Maximum over the warp, the same in all lanes; a NaN counts only if all lanes have one.
__device__ __forceinline__ float warp_max(float x) {
    UNROLL for (int i = 16; i; i /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
