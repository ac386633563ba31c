// Shared-memory addresses, named barriers and approximate functions: inline PTX where NVRTC has no intrinsic without
// headers.
#pragma once
#include "types.cuh"

// The 32-bit address of shared memory that PTX instructions take.
__device__ __forceinline__ u32 smem_address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }

// Store 16 bytes at a shared address that is a multiple of 16.
__device__ __forceinline__ void st_shared_16(u32 smem, uint4 v) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(smem), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

// N threads, whole warps, wait for each other at named barrier `id`, 0 to 15; __syncthreads is barrier 0.
template <int N>
__device__ __forceinline__ void named_barrier_sync(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(N) : "memory");
}

// The same for an id that is known at compile time.
template <int ID, int N>
__device__ __forceinline__ void named_barrier_sync() {
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(N) : "memory");
}

// Arrive at the barrier of N threads without waiting for the others.
template <int N>
__device__ __forceinline__ void named_barrier_arrive(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(N) : "memory");
}

// N threads wait for each other; returns true in all if `predicate` is true in each.
template <int N>
__device__ __forceinline__ bool named_barrier_all(int id, bool predicate) {
    u32 all;
    asm volatile("{ .reg .pred p, q; setp.ne.u32 q, %1, 0; bar.red.and.pred p, %2, %3, q; selp.u32 %0, 1, 0, p; }"
                 : "=r"(all)
                 : "r"((u32)predicate), "r"(id), "n"(N)
                 : "memory");
    return all;
}

// 2^x to about 2 ulp; denormal results are zero.
__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1 / x to about 1 ulp; denormal results are zero.
__device__ __forceinline__ float rcp_approx(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
