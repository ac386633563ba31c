// Barriers in shared memory: threads arrive, copies complete on them, and who needs both waits alone.
//
// On Hopper a barrier counts the bytes that bulk copies bring; before, every lane that copies arrives.
#pragma once
#include "../formats/half.cuh"

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

// For so many arrivals a phase; by one lane, `__syncwarp` or a barrier before others use it.
__device__ __forceinline__ void barrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// For the copies of a warp.
__device__ __forceinline__ void barrier_init(u32 barrier) {
#if __CUDA_ARCH__ >= 900
    barrier_init(barrier, 1);
#else
    barrier_init(barrier, 32);
#endif
}

// What the thread did before is seen by who waits; for a warp one lane may arrive after `__syncwarp`.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// `n` times at once, which must not be the last arrivals of the phase.
__device__ __forceinline__ void barrier_arrive(u32 barrier, int n) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.noComplete.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(n) : "memory");
}

// Arrive, and expect so many bytes before the phase ends (Hopper).
__device__ __forceinline__ void barrier_expect(u32 barrier, int n_bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(n_bytes) : "memory");
#endif
}

// Wait for the end of a phase: 0 is that of the first, the third, ...
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 phase) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\nbra again;\ndone:\n}" ::"r"(barrier), "r"(phase) : "memory");
#else
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(phase) : "memory");
    } while (!done);
#endif
}
