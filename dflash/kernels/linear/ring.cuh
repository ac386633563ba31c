// Tiles on their way into shared memory: copies that complete on a barrier, which a warp waits for alone.
//
// On Hopper a lane starts a bulk copy; before, every lane copies 16 bytes at a time.
#pragma once
#include "barriers.cuh"

// A multiple of 16 bytes comes into the L2 cache (Hopper).
__device__ __forceinline__ void prefetch(u64 from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// One lane of a whole warp, as the compiler knows it: then what the lane does alone needs no loop over lanes (Hopper).
__device__ __forceinline__ bool is_elected() {
    u32 yes = 0;
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.b32 %0, 1, 0, p;\n}" : "=r"(yes));
#endif
    return yes;
}

// Keep what is read once no longer in the L2 cache than needed, so that what was fetched ahead stays.
constexpr u64 EVICT_FIRST = 0x12f0000000000000ull;

// This lane arrives on a barrier as soon as what it began to copy by `copy_16` is there.
__device__ __forceinline__ void copies_arrive(u32 barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}

// A warp, all of it, starts to copy N pieces of BYTES each, a multiple of 16, which complete on `barrier`.
template <int N, int BYTES>
__device__ __forceinline__ void ring_copy(u32 to, const u8* const (&from)[N], size_t offset, u32 barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (is_elected()) {
        barrier_expect(barrier, N * BYTES);
#pragma unroll
        for (int i = 0; i < N; ++i) {
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;"
                ::"r"(to + i * BYTES), "l"(from[i] + offset), "n"(BYTES), "r"(barrier), "l"(EVICT_FIRST) : "memory");
        }
    }
#else
#pragma unroll
    for (int i = 0; i < N; ++i) {
#pragma unroll
        for (int at = 0; at < BYTES; at += 512) {
            if (at + 16 * lane < BYTES) copy_16(to + i * BYTES + at + 16 * lane, from[i] + offset + at + 16 * lane);
        }
    }
    copies_arrive(barrier);
#endif
}

// Blocks that run together and see each other's shared memory; before Hopper a block is alone.
#if __CUDA_ARCH__ >= 900
#define __clusters__(n) __cluster_dims__(n, 1, 1)
#else
#define __clusters__(n)
#endif

__device__ __forceinline__ void cluster_sync() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// Store in block `rank` of the cluster, where an address of this block's says.
__device__ __forceinline__ void store_in_block(u32 shared, int rank, float4 v) {
#if __CUDA_ARCH__ >= 900
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared), "r"(rank));
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(there), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
#endif
}
