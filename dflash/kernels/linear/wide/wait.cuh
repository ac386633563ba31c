// Waits of a thread for other blocks of its launch.
#pragma once
#include "../../gpu/include/types.cuh"

constexpr u64 WAIT_TIMEOUT = 20ull * 1000 * 1000 * 1000;  // nanoseconds after which a launch fails rather than hangs

// Order the accesses of this thread before and after, for all blocks.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Wait until `counter` is at least `n`; other blocks add to it.
__device__ __forceinline__ void wait_for_count(int* counter, int n) {
    u64 start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    while (atomicAdd(counter, 0) < n) {
        __nanosleep(40);
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > WAIT_TIMEOUT) asm volatile("trap;");
    }
}
