// Bulk copies of Hopper's copy engine (TMA): one thread starts them; they complete on a barrier when their bytes have
// arrived.
//
// Before a copy, call `mbarrier_arrive_expect_tx` with its bytes. `smem` is a shared address, see `smem_address`.
#pragma once
#include "mbarrier.cuh"

// CUtensorMap, passed to a kernel as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    u64 words[16];
};

// Bring a map, a parameter of the kernel, where copies read it.
__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// A cache policy for data that is read once: it leaves the L2 cache first, so that prefetched data stays.
constexpr u64 EVICT_FIRST = 0x12f0000000000000ull;

// Copy the box of a two-dimensional tensor map that begins at `row` and `column`.
__device__ __forceinline__ void tma_load_2d(u32 smem, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            smem),
        "l"(&map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
}

// Copy `n_bytes`, a multiple of 16, from consecutive addresses.
__device__ __forceinline__ void bulk_copy(u32 smem, const void* global, int n_bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(smem),
                 "l"(global), "r"(n_bytes), "r"(barrier)
                 : "memory");
}
