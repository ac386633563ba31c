// Detection of the last block of a grid to finish its part.
#pragma once

// True in the last block that calls this. That block can read what the other blocks wrote before their call.
__device__ __forceinline__ bool is_last(int* arrived) {
    __shared__ int last;
    __threadfence();  // publish the results of this block before it counts as arrived
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1) == gridDim.x - 1;
        if (last) *arrived = 0;
    }
    __syncthreads();
    if (last) __threadfence();  // read the results of the other blocks after their arrival
    return last;
}
