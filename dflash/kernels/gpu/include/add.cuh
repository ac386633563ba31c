// Additions to global memory that a thread does not wait for.
#pragma once
#include "types.cuh"

// Add to four float32 at a multiple of 16 bytes, which no other thread writes. Before Hopper they are loaded and stored.
__device__ __forceinline__ void add_4(float* to, float4 v) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#else
    const float4 old = *(const float4*)to;
    *(float4*)to = make_float4(__fadd_rn(v.x, old.x), __fadd_rn(v.y, old.y), __fadd_rn(v.z, old.z), __fadd_rn(v.w, old.w));
#endif
}
