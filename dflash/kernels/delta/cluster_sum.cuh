// Sums over the blocks of a cluster through distributed shared memory (DSMEM), without a fence: a store into another block's
// shared memory counts its bytes at a barrier of that block.
//
// Macro: SPLIT, blocks of a cluster.
#pragma once
#include "../gpu/include/mbarrier.cuh"

#ifndef SPLIT
#error "SPLIT must be defined"
#endif

// N warps of each block exchange values with the warp of the same number in the other blocks. They alternate between two
// barriers: a warp may be one exchange ahead of another, never two.
template <int N>
struct ClusterSum {
    u64 barriers[N][2];
    float sums[N][2][SPLIT];

    // Called by all threads.
    __device__ __forceinline__ void init() {
#if __CUDA_ARCH__ >= 900
        const int number = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0 && number < N) {
            mbarrier_init(smem_address(&barriers[number][0]), 1);
            mbarrier_init(smem_address(&barriers[number][1]), 1);
        }
        __syncwarp();  // the barriers are initialised before the warp arrives at the cluster's barrier
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    // Wait until all blocks of the cluster have called `init`.
    __device__ __forceinline__ void wait_init() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // Sum over the blocks of the cluster of `mine` of warp `number`, the same in all lanes. `turn`: number of the exchange;
    // `part`: this block's rank.
    __device__ __forceinline__ float sum(int number, int turn, int part, float mine) {
#if __CUDA_ARCH__ >= 900
        const int lane = threadIdx.x % 32;
        float* const all = sums[number][turn % 2];
        u64* const barrier = &barriers[number][turn % 2];
        if (lane < SPLIT) {
            u32 remote, remote_barrier;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem_address(all + part)), "r"(lane));
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                         : "=r"(remote_barrier)
                         : "r"(smem_address(barrier)), "r"(lane));
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(remote),
                         "r"(__float_as_uint(mine)), "r"(remote_barrier)
                         : "memory");
        }
        if (lane == 0) mbarrier_arrive_expect_tx(smem_address(barrier), 4 * SPLIT);
        mbarrier_wait_warp(barrier, turn / 2 % 2);
        mine = all[0];
        UNROLL for (int p = 1; p < SPLIT; ++p) mine = __fadd_rn(mine, all[p]);
        __syncwarp();  // all lanes have read the sums
#endif
        return mine;
    }
};
