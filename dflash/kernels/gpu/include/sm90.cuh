// Hopper: registers of warpgroups, the async proxy, elected lanes, clusters, and the ordering of wgmma.
//
// setmaxnreg and wgmma exist on sm_90a alone; kernels with them are compiled for that architecture only.
#pragma once
#include "types.cuh"

// A warpgroup (four warps from a multiple of four) gives registers back: at most N a thread from now on.
template <int N>
__device__ __forceinline__ void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

// A warpgroup waits for registers and takes up to N a thread.
template <int N>
__device__ __forceinline__ void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Make this thread's writes to shared memory visible to the async proxy (wgmma, bulk copies); then a barrier.
__device__ __forceinline__ void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory, too, which bulk copies read.
__device__ __forceinline__ void fence_async_proxy_all() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Order accesses of registers and shared memory before the wgmma that follow. Required before the first of a sequence.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Wait until at most the latest N groups of this warpgroup are incomplete.
template <int N>
__device__ __forceinline__ void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// Keep the compiler from moving reads and writes of the sums across this point, see warpgroup_fence_operand in CUTLASS.
template <int N>
__device__ __forceinline__ void wgmma_fence_operand(float (&d)[N][4]) {
    UNROLL for (int n = 0; n < N; ++n)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

// True in one lane of a converged warp; the compiler then needs no loop over lanes. False in all lanes before Hopper.
__device__ __forceinline__ bool elect_one() {
    u32 elected = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(elected));
#endif
    return elected;
}

// Attribute of a kernel whose blocks run as clusters of n and can access each other's shared memory. Nothing before Hopper.
#if __CUDA_ARCH__ >= 900
#define __cluster_size__(n) __cluster_dims__(n, 1, 1)
#else
#define __cluster_size__(n)
#endif

__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Store 16 bytes in the shared memory of block `rank` of the cluster, at this block's shared address `smem`.
__device__ __forceinline__ void st_cluster_16(u32 smem, int rank, float4 v) {
#if __CUDA_ARCH__ >= 900
    u32 remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(remote), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}
