// Tiles on their way into shared memory: copies that complete on a barrier, which a warp waits for alone.
//
// On Hopper a lane starts a bulk copy; before, every lane copies 16 bytes at a time.
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

// By one lane, after `__syncwarp` for a warp: what was done before is seen by who waits.
__device__ __forceinline__ void barrier_arrive(u32 barrier) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

// `n` times at once, which must not be the last arrivals of the phase.
__device__ __forceinline__ void barrier_arrive(u32 barrier, int n) {
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.noComplete.shared.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(n) : "memory");
}

// A warp waits until the copies of phase `parity` are there.
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "{\n.reg .pred p;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
        "@p bra done;\nbra again;\ndone:\n}" ::"r"(barrier), "r"(parity) : "memory");
#else
    u32 done;
    do {
        asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
    } while (!done);
#endif
}

// Of the phase at hand a barrier expects so many bytes.
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
#endif
}

// One thread starts to copy a multiple of 16 bytes (Hopper).
__device__ __forceinline__ void bulk_copy(u32 to, const void* from, u32 bytes, u32 barrier) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
                 "r"(bytes), "r"(barrier) : "memory");
#endif
}

// A multiple of 16 bytes comes into the L2 cache (Hopper).
__device__ __forceinline__ void prefetch(u64 from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// What this thread wrote comes before bulk copies that are started after a barrier.
__device__ __forceinline__ void fence_bulk_copies() {
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "n"(N * BYTES) : "memory");
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
