// Parts of a block that wait for each other: named barriers, and barriers for groups of rows that some warps make and others
// take.
#pragma once

// N threads, whole warps, wait for each other.
template <int N>
__device__ __forceinline__ void meet(int barrier) {
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(N) : "memory");
}

// Whether `x` is true for all N.
template <int N>
__device__ __forceinline__ bool all_of(int barrier, bool x) {
    u32 all;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 q, %1, 0; bar.red.and.pred p, %2, %3, q; selp.u32 %0, 1, 0, p; }"
                 : "=r"(all) : "r"((u32)x), "r"(barrier), "n"(N) : "memory");
    return all;
}

// A whole warp waits for the end of a phase, and goes on together.
__device__ __forceinline__ void wait_together(const u64* barrier, u32 phase) {
    barrier_wait(address(barrier), phase);
    __syncwarp();
}

// Every lane arrives as soon as what it copies has come.
__device__ __forceinline__ void arrive_after_copies(const u64* barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address(barrier)) : "memory");
}

// Rows in the order in which they are visited, GROUP at a time: their inputs have come, they are made, they are visited.
constexpr int GROUP = 4, MOST_GROUPS = MOST_ROWS / GROUP;

struct Groups {
    u64 fetched[MOST_GROUPS], ready[MOST_GROUPS], visited[MOST_GROUPS];  // every thread arrives for itself

    // By all threads; a barrier after another takes a warp as long as one after another does several.
    __device__ __forceinline__ void prepare() {
        if (threadIdx.x % 32 == 0) {
#pragma unroll 1
            for (int i = threadIdx.x / 32; i < MOST_GROUPS; i += THREADS / 32) {
                barrier_init(address(fetched + i), 32 * GROUP);
                barrier_init(address(ready + i), 32 * GROUP);
                barrier_init(address(visited + i), VISITORS);
            }
        }
        __syncwarp();
    }
};
