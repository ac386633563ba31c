// Copies of tiles into a ring in shared memory. Each stage has a barrier, which only the warp that reads the stage waits
// for.
//
// On Hopper one lane starts a bulk copy. Before Hopper every lane copies 16 bytes at a time with cp.async. Barriers must be
// initialised with `mbarrier_init_for_copies`.
#pragma once
#include "cp_async.cuh"
#include "sm90.cuh"
#include "tma.cuh"

// A whole warp starts to copy N tiles of BYTES each, a multiple of 16, to consecutive shared memory.
template <int N, int BYTES>
__device__ __forceinline__ void copy_tiles_async(u32 smem, const u8* const (&tiles)[N], size_t offset, u32 barrier,
                                                 int lane) {
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
    cp_async_mbarrier_arrive(barrier);
#endif
}
