// Loads of memory that the host or other GPUs write while a kernel runs, or between launches; not served from the L1 cache.
#pragma once
#include "types.cuh"

__device__ __forceinline__ uint4 load_system_16(const void* from) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ u32 load_system(const void* from) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}
