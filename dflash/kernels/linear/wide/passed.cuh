// Sums that a block passes on to the next one, which goes on with them.
//
// Constants: WARPS, consumer warps of a block; NT, eights of tokens.
#pragma once
#include "wait.cuh"

__device__ __forceinline__ float4 load_l2(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// Sums of a warp that the next block goes on with, and whether they are there.
struct Passed {
    float* sums;  // (blocks, WARPS, NT, 128)
    int* there;   // (blocks, WARPS)

    __device__ __forceinline__ void give(const float (&total)[NT][4], int warp, int lane) const {
        const size_t at = (size_t)blockIdx.x * WARPS + warp;
        UNROLL for (int n = 0; n < NT; ++n)
            *(float4*)(sums + (at * NT + n) * 128 + 4 * lane) = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
        fence_gpu();  // the sums are visible before they are announced
        __syncwarp();
        if (lane == 0) atomicExch(there + at, 1);
    }
    __device__ __forceinline__ void take(float (&total)[NT][4], int warp, int lane) const {
        const size_t at = (size_t)(blockIdx.x - 1) * WARPS + warp;
        if (lane == 0) {
            wait_for_count(there + at, 1);
            there[at] = 0;
        }
        __syncwarp();  // the sums are read after they were announced
        UNROLL for (int n = 0; n < NT; ++n) {
            const float4 v = load_l2(sums + (at * NT + n) * 128 + 4 * lane);
            total[n][0] = v.x, total[n][1] = v.y, total[n][2] = v.z, total[n][3] = v.w;
        }
    }
};
