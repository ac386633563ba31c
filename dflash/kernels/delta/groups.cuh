// Parts of a block that wait for each other: named barriers, and barriers for groups of rows that some warps make and others
// take.
#pragma once

// A converged warp waits for the end of a phase and stays converged.
__device__ __forceinline__ void mbarrier_wait_warp(const u64* barrier, u32 parity) {
    mbarrier_wait(smem_address(barrier), parity);
    __syncwarp();
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
                mbarrier_init(smem_address(fetched + i), 32 * GROUP);
                mbarrier_init(smem_address(ready + i), 32 * GROUP);
                mbarrier_init(smem_address(visited + i), VISITORS);
            }
        }
        __syncwarp();
    }
};
