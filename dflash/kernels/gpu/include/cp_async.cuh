// Asynchronous copies from global to shared memory (cp.async, compute capability 8.0), which bypass registers.
//
// Copies of a thread complete in groups (`cp_async_commit_group`, `cp_async_wait_group`) or arrive on a barrier
// (`cp_async_mbarrier_arrive`). `smem` is a shared address, see `smem_address`.
#pragma once
#include "ptx.cuh"

__device__ __forceinline__ void cp_async_4(u32 smem, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem), "l"(global) : "memory");
}

// 16 bytes through the L2 cache; both addresses are multiples of 16.
__device__ __forceinline__ void cp_async_16(u32 smem, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(smem), "l"(global) : "memory");
}

// The same, or 16 zeros where `predicate` is false; then nothing is read, but `global` must still be an address.
__device__ __forceinline__ void cp_async_16_zfill(u32 smem, const void* global, bool predicate) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(smem), "l"(global), "r"(predicate ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void cp_async_16_zfill(void* shared, const void* global, bool predicate) {
    cp_async_16_zfill(smem_address(shared), global, predicate);
}

__device__ __forceinline__ void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Wait until at most the latest N groups of this thread are incomplete.
template <int N>
__device__ __forceinline__ void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// This thread arrives on the barrier at `barrier` once all its copies so far are complete. Counts as one expected arrival.
__device__ __forceinline__ void cp_async_mbarrier_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
