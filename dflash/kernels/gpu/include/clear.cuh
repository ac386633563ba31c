// Zero the sums of a multiply, float32 arrays whose last dimension is the four elements of a fragment.
#pragma once
#include "types.cuh"

__device__ __forceinline__ void clear(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0.0f; }

template <class T, int N>
__device__ __forceinline__ void clear(T (&sums)[N]) {
    UNROLL for (int i = 0; i < N; ++i) clear(sums[i]);
}
