// Copies of tiles into a ring in shared memory. Each stage has a barrier, which only the warp that reads the stage waits
// for.
//
// On Hopper one lane starts a bulk copy. Before Hopper every lane copies 16 bytes at a time with cp.async. Barriers must be
// initialised with `mbarrier_init_for_copies`.
//
// A warp that reads its stages in the order of their copies may use `ring_copy`, `ring_commit` and `ring_wait`. Before Hopper
// these take groups of cp.async, for which a warp waits without the instructions of a loop; then barriers are not used.
#pragma once
#include "cp_async.cuh"
#include "sm90.cuh"
#include "tma.cuh"

#if __CUDA_ARCH__ >= 900
constexpr bool GROUPED_RINGS = false;
#else
constexpr bool GROUPED_RINGS = true;
#endif

// A whole warp starts to copy N tiles of BYTES each, a multiple of 16, to consecutive shared memory.
template <int N, int BYTES>
__device__ __forceinline__ void ring_copy(u32 smem, const u8* const (&tiles)[N], size_t offset, u32 barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (elect_one()) {
        mbarrier_arrive_expect_tx(barrier, N * BYTES);
        UNROLL for (int i = 0; i < N; ++i) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
                "%4;" ::"r"(smem + i * BYTES),
                "l"(tiles[i] + offset), "n"(BYTES), "r"(barrier), "l"(EVICT_FIRST)
                : "memory");
        }
    }
#else
    UNROLL for (int i = 0; i < N; ++i) {
        UNROLL for (int at = 0; at < BYTES; at += 512) {
            if (at + 16 * lane < BYTES) {
                cp_async_16(smem + i * BYTES + at + 16 * lane, tiles[i] + offset + at + 16 * lane);
            }
        }
    }
#endif
}

// End the copies of a stage. Every warp calls it once for each stage and `ring_wait`, also where nothing is left to copy.
__device__ __forceinline__ void ring_commit() {
    if constexpr (GROUPED_RINGS) cp_async_commit_group();
}

// Wait for the oldest of the LATEST stages.
template <int LATEST>
__device__ __forceinline__ void ring_wait(u32 barrier, u32 parity) {
    if constexpr (GROUPED_RINGS) {
        cp_async_wait_group<LATEST - 1>();
        __syncwarp();
    } else {
        mbarrier_wait(barrier, parity);
    }
}

// `ring_copy` for stages that are read in any order: the copies arrive on the stage's barrier.
template <int N, int BYTES>
__device__ __forceinline__ void copy_tiles_async(u32 smem, const u8* const (&tiles)[N], size_t offset, u32 barrier,
                                                 int lane) {
    ring_copy<N, BYTES>(smem, tiles, offset, barrier, lane);
    if constexpr (GROUPED_RINGS) cp_async_mbarrier_arrive(barrier);
}
