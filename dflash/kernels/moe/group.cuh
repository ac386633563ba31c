// The multiply of Hopper's groups of four warps, with one side in registers: 64 rows, 16 of K and 16 * N tokens.
//
// The other side lies in shared memory: rows of 128 bytes, a token each, whose 16-byte chunk c of token r stands at c ^ r % 8;
// the first is aligned to 1024 bytes.
#pragma once
#include "../formats/half.cuh"

__device__ __forceinline__ u64 tokens_at(u32 shared) {
    return (shared & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// What threads wrote to shared memory, with copies too, is seen by the multiply; before a barrier.
__device__ __forceinline__ void show_to_multiply() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void group_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void group_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Until all but the latest N are done.
template <int N>
__device__ __forceinline__ void group_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

// After the last wait: nothing that reads the sums moves before it.
template <int NT>
__device__ __forceinline__ void hold(float (&d)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
#pragma unroll
        for (int e = 0; e < 4; ++e) asm volatile("" : "+f"(d[n][e])::"memory");
}

#define REGISTERS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define REGISTERS_2 REGISTERS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define REGISTERS_3 REGISTERS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define REGISTERS_4 REGISTERS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define REGISTERS_5 REGISTERS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define REGISTERS_6 REGISTERS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define REGISTERS_7 REGISTERS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define REGISTERS_8 REGISTERS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define SUMS_OF(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define SUMS_1 SUMS_OF(0), SUMS_OF(1)
#define SUMS_2 SUMS_1, SUMS_OF(2), SUMS_OF(3)
#define SUMS_3 SUMS_2, SUMS_OF(4), SUMS_OF(5)
#define SUMS_4 SUMS_3, SUMS_OF(6), SUMS_OF(7)
#define SUMS_5 SUMS_4, SUMS_OF(8), SUMS_OF(9)
#define SUMS_6 SUMS_5, SUMS_OF(10), SUMS_OF(11)
#define SUMS_7 SUMS_6, SUMS_OF(12), SUMS_OF(13)
#define SUMS_8 SUMS_7, SUMS_OF(14), SUMS_OF(15)

// d = a @ tokens.T, added to d if `more`; d[n][2 * r + e] is of row lane / 4 + 8 * r of the warp's 16, token 8 * n + 2 * t + e.
#define GROUP_MULTIPLY(N, COLUMNS, A0, A1, A2, A3, AT, MORE)                                                          \
    __device__ __forceinline__ void group_multiply(float (&d)[2 * N][4], const u32* a, u64 tokens, int more) {        \
        asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %" #MORE ", 0;\n"                                        \
                     "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.f16.f16 {" REGISTERS_##N "}, {%" #A0 ", %" #A1 \
                     ", %" #A2 ", %" #A3 "}, %" #AT ", more, 1, 1, 0;\n}"                                             \
                     : SUMS_##N                                                                                       \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens), "r"(more)                             \
                     : "memory");                                                                                     \
    }
GROUP_MULTIPLY(1, 16, 8, 9, 10, 11, 12, 13)
GROUP_MULTIPLY(2, 32, 16, 17, 18, 19, 20, 21)
GROUP_MULTIPLY(3, 48, 24, 25, 26, 27, 28, 29)
GROUP_MULTIPLY(4, 64, 32, 33, 34, 35, 36, 37)
GROUP_MULTIPLY(5, 80, 40, 41, 42, 43, 44, 45)
GROUP_MULTIPLY(6, 96, 48, 49, 50, 51, 52, 53)
GROUP_MULTIPLY(7, 112, 56, 57, 58, 59, 60, 61)
GROUP_MULTIPLY(8, 128, 64, 65, 66, 67, 68, 69)
#undef GROUP_MULTIPLY
