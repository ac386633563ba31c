// The blocks of a cluster, which tell each other sums without a fence: a store into another block's shared memory counts
// its bytes at a barrier there.
#pragma once

// Two barriers, in turn: a block may be one exchange ahead of another, never two. All threads call all of these but `tell`.
struct Exchange {
    u64 barriers[2];

    __device__ __forceinline__ void prepare() {
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(barriers)) : "memory");
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address(barriers + 1)) : "memory");
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
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

    // Store `value` in block `rank` where `mine` lies in this one.
    __device__ __forceinline__ void tell(int turn, float* mine, int rank, float value) {
#if __CUDA_ARCH__ >= 900
        u32 there, barrier;
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address(mine)), "r"(rank));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(barrier) : "r"(address(barriers + turn % 2)), "r"(rank));
        asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
                     "r"(__float_as_uint(value)), "r"(barrier)
                     : "memory");
#endif
    }

    // Until `bytes` have been told to this block.
    __device__ __forceinline__ void wait(int turn, int bytes) {
#if __CUDA_ARCH__ >= 900
        const u32 barrier = address(barriers + turn % 2);
        if (threadIdx.x == 0) {
            asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        }
        u32 done = 0;
        while (!done) {
            asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                         : "=r"(done)
                         : "r"(barrier), "r"(turn / 2 % 2)
                         : "memory");
        }
#endif
    }
};
