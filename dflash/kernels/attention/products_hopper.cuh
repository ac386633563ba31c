// The two products of attention, scores = Q K^T and values += P V, by groups of four warps for 64 queries: they go on while the
// warps do other things, until `wait_products`.
#pragma once
#include "../linear/hopper.cuh"
#include "tiles.cuh"

static_assert(KEYS == 64, "a product of scores is made of 64 queries and 64 keys");

constexpr int SCORES = KEYS / 8, VALUES = 8 * COLUMNS;  // fragments of 16 queries and 8 columns

// What ordinary stores wrote to shared memory may be multiplied and copied over after this and a barrier.
__device__ __forceinline__ void shared_is_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Registers that products read and add to are as they shall be.
__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the last `N` groups of products are done, whose fragments are `d` among others.
template <int N, int FRAGMENTS>
__device__ __forceinline__ void wait_products(float (&d)[FRAGMENTS][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
#pragma unroll
    for (int i = 0; i < FRAGMENTS; ++i) asm volatile("" : ACCUMULATOR_4(i)::"memory");
}

// Describe a tile: 8 rows lie 1024 bytes from the next 8, a block of 64 columns `block` bytes from the next.
__device__ __forceinline__ u64 described(u32 address, u32 block) {
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(block >> 4) << 16 | (address & 0x3ffff) >> 4;
}

__device__ __forceinline__ void multiply_keys(float (*d)[4], u64 queries, u64 keys, int more) {
    asm volatile(
        "{.reg .pred more; setp.ne.b32 more, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, more, 1, 1, 0, 0;}"
        : ACCUMULATOR_32(0)
        : "l"(queries), "l"(keys), "r"(more));
}

__device__ __forceinline__ void multiply_64_values(float (*d)[4], const u32* weights, u64 values) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : ACCUMULATOR_32(0)
        : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(values));
}

__device__ __forceinline__ void multiply_128_values(float (*d)[4], const u32* weights, u64 values) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : ACCUMULATOR_32(0), ACCUMULATOR_32(8)
        : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "l"(values));
}

// Begin: scores of the group's queries with the keys of a tile.
__device__ __forceinline__ void begin_scores(float (&d)[SCORES][4], u32 queries, u32 keys) {
#pragma unroll
    for (int k = 0; k < HEAD / 16; ++k) {
        const u32 inside = k % 4 * 32;
        multiply_keys(d, described(queries + k / 4 * (64 * 128) + inside, 0),
                      described(keys + k / 4 * (KEYS * 128) + inside, 0), k > 0);
    }
    commit_products();
}

// Begin: add the values of a tile, weighted.
__device__ __forceinline__ void begin_values(float (&d)[VALUES][4], const u32 (&weights)[KEYS / 16][4], u32 values) {
#pragma unroll
    for (int k = 0; k < KEYS / 16; ++k) {
        const u32 own = values + k * 2048;
#pragma unroll
        for (int c = 0; c + 1 < COLUMNS; c += 2) {
            multiply_128_values(d + 8 * c, weights[k], described(own + c * (KEYS * 128), KEYS * 128));
        }
        if (COLUMNS % 2) {
            constexpr int C = COLUMNS - 1;
            multiply_64_values(d + 8 * C, weights[k], described(own + C * (KEYS * 128), KEYS * 128));
        }
    }
    commit_products();
}
