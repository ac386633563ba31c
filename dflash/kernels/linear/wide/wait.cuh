// Waits of a thread for other blocks of its launch.
#pragma once
#include "../../gpu/include/types.cuh"

constexpr int MOST_WAITS = 1 << 24;  // rounds of a wait, 10 seconds or more, after which a launch fails rather than hangs

// Order the accesses of this thread before and after, for all blocks.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// Wait until `counter` is at least `n`; other blocks add to it. What they wrote before is then visible to this thread, and to its
// warp after `__syncwarp`. A wait that is too long writes to address 0, which ends the launch with an error: `trap` would leave
// the consumer warps fewer registers.
__device__ __forceinline__ void wait_for_count(const int* counter, int n) {
    for (int i = 0;; ++i) {
        u32 now;
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
        if ((int)now >= n) return;
        __nanosleep(20);
        if (i == MOST_WAITS) *(volatile int*)nullptr = 0;
    }
}
