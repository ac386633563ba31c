// Barriers in shared memory (mbarrier, compute capability 8.0): 8 bytes each, addressed by `smem_address`.
//
// A phase ends after a number of arrivals; on Hopper also after the bytes that bulk copies were expected to bring.
//
// Macro: EVERY_LANE_ARRIVES, 0 by default. With 1, in kernels that count WARP_ARRIVALS or WARPGROUP_ARRIVALS every thread arrives
// for itself, not one for all that have met: for a checker that follows the arrivals of each thread only.
#pragma once
#include "ptx.cuh"

#ifndef EVERY_LANE_ARRIVES
#define EVERY_LANE_ARRIVES 0
#endif

// Arrivals for a warp, by its lanes with `EVERY_LANE_ARRIVES || lane == 0`, and for a warpgroup. An enum, since NVRTC makes a
// variable of a constexpr in every kernel that includes it.
enum : int { WARP_ARRIVALS = EVERY_LANE_ARRIVES ? 32 : 1, WARPGROUP_ARRIVALS = EVERY_LANE_ARRIVES ? 128 : 1 };

// `arrivals` end each phase. Called by one lane; then `__syncwarp` or a block barrier before other threads use it.
__device__ __forceinline__ void mbarrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// For `copies` calls of `copy_tiles_async` by a warp: one arrival of each on Hopper, before that one of each lane.
__device__ __forceinline__ void mbarrier_init_for_copies(u32 barrier, int copies = 1) {
#if __CUDA_ARCH__ >= 900
    mbarrier_init(barrier, copies);
#else
    mbarrier_init(barrier, 32 * copies);
#endif
}

// Threads that wait see what this thread wrote before. For a warp one lane may arrive after `__syncwarp`: see WARP_ARRIVALS.
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// `n` arrivals at once, which must not be the last of the phase.
__device__ __forceinline__ void mbarrier_arrive_no_complete(u32 barrier, int n) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.noComplete.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(n)
                 : "memory");
}

// Arrive, and expect `n_bytes` of bulk copies before the phase ends. Hopper only; does nothing before.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, int n_bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
#endif
}

// Wait for the end of a phase: `parity` 0 for the first, third, ... phase, 1 for the others.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\nbra again;\ndone:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
#else
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}

// A converged warp waits for the end of a phase and stays converged.
__device__ __forceinline__ void mbarrier_wait_warp(const u64* barrier, u32 parity) {
    mbarrier_wait(smem_address(barrier), parity);
    __syncwarp();
}
