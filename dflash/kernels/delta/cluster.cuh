// The blocks of a cluster, which tell each other sums without a fence: a store into another block's shared memory counts
// its bytes at a barrier there.
#pragma once

// Makers of the same number exchange, each at two barriers in turn: one may be one exchange ahead of another, never two.
struct Exchange {
    u64 barriers[MAKERS][2];
    float sums[MAKERS][2][SPLIT];

    // By all threads.
    __device__ __forceinline__ void prepare() {
#if __CUDA_ARCH__ >= 900
        const int maker = threadIdx.x / 32;
        if (threadIdx.x % 32 == 0 && maker < MAKERS) {
            mbarrier_init(smem_address(&barriers[maker][0]), 1);
            mbarrier_init(smem_address(&barriers[maker][1]), 1);
        }
        __syncwarp();
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
    }

    // Until all blocks of the cluster are prepared.
    __device__ __forceinline__ void all_prepared() {
#if __CUDA_ARCH__ >= 900
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    }

    // The sum of what the makers of this number bring; `mine` is the same in all lanes.
    __device__ __forceinline__ float sum(int maker, int turn, int part, float mine) {
#if __CUDA_ARCH__ >= 900
        const int lane = threadIdx.x % 32;
        float* const all = sums[maker][turn % 2];
        u64* const barrier = &barriers[maker][turn % 2];
        if (lane < SPLIT) {
            u32 there, its_barrier;
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(smem_address(all + part)), "r"(lane));
            asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(its_barrier) : "r"(smem_address(barrier)), "r"(lane));
            asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
                         "r"(__float_as_uint(mine)), "r"(its_barrier)
                         : "memory");
        }
        if (lane == 0) mbarrier_arrive_expect_tx(smem_address(barrier), 4 * SPLIT);
        mbarrier_wait_warp(barrier, turn / 2 % 2);
        mine = all[0];
#pragma unroll
        for (int p = 1; p < SPLIT; ++p) mine = __fadd_rn(mine, all[p]);
        __syncwarp();
#endif
        return mine;
    }
};
