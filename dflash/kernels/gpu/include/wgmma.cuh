// Asynchronous tensor core multiplies of a warpgroup (wgmma, sm_90a), float16 inputs, float32 sums.
//
// Sums: d[n][2 * r + e] is row lane / 4 + 8 * r of the warp's 16 of 64 rows, column 8 * n + 2 * (lane % 4) + e. Operands in
// shared memory are rows of 128 bytes (64 float16) with the 128-byte swizzle: 16-byte chunk c of row r is stored at chunk c
// ^ r % 8, as TMA writes it. The first row is aligned to 1024 bytes. A multiply uses 16 of the 64 columns; the next 16 are
// 32 bytes further on.
#pragma once
#include "sm90.cuh"

// Matrix descriptor of an operand whose rows are one block of 64 columns.
__device__ __forceinline__ u64 wgmma_descriptor(u32 smem) {
    return (smem & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

// The same for an operand of several blocks of 64 columns, `block_bytes` apart.
__device__ __forceinline__ u64 wgmma_descriptor(u32 smem, u32 block_bytes) {
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(block_bytes >> 4) << 16 | (smem & 0x3ffff) >> 4;
}

#define WGMMA_SUM(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_SUMS_2_FROM(n) WGMMA_SUM(n), WGMMA_SUM(n + 1)
#define WGMMA_SUMS_8_FROM(n) \
    WGMMA_SUMS_2_FROM(n), WGMMA_SUMS_2_FROM(n + 2), WGMMA_SUMS_2_FROM(n + 4), WGMMA_SUMS_2_FROM(n + 6)

// d = a @ b.T, plus d if `accumulate`, with both operands in shared memory: 64 rows of a; 64, 128 or 256 rows of b; 16 of K.
__device__ __forceinline__ void wgmma_ss(float (&d)[8][4], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "%32, %33, p, 1, 1, 0, 0;\n}"
        : WGMMA_SUMS_8_FROM(0)
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma_ss(float (&d)[16][4], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 0;\n}"
        : WGMMA_SUMS_8_FROM(0), WGMMA_SUMS_8_FROM(8)
        : "l"(a), "l"(b), "r"(accumulate));
}

__device__ __forceinline__ void wgmma_ss(float (&d)[32][4], u64 a, u64 b, int accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, 0, 0;\n}"
        : WGMMA_SUMS_8_FROM(0), WGMMA_SUMS_8_FROM(8), WGMMA_SUMS_8_FROM(16), WGMMA_SUMS_8_FROM(24)
        : "l"(a), "l"(b), "r"(accumulate));
}

// d += a @ b, with A fragments in registers: 16 rows of b, transposed as they are read; 64 or 128 columns of b.
__device__ __forceinline__ void wgmma_rs_trans_b_64(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
        : WGMMA_SUMS_8_FROM(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

__device__ __forceinline__ void wgmma_rs_trans_b_128(float (*d)[4], const u32* a, u64 b) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
        "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
        "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
        "%60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
        : WGMMA_SUMS_8_FROM(0), WGMMA_SUMS_8_FROM(8)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

#define WGMMA_REGISTERS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_REGISTERS_2 WGMMA_REGISTERS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_3 WGMMA_REGISTERS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGISTERS_4 WGMMA_REGISTERS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_5 WGMMA_REGISTERS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_REGISTERS_6 WGMMA_REGISTERS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_REGISTERS_7 WGMMA_REGISTERS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_REGISTERS_8 WGMMA_REGISTERS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_SUMS_1 WGMMA_SUM(0), WGMMA_SUM(1)
#define WGMMA_SUMS_2 WGMMA_SUMS_1, WGMMA_SUM(2), WGMMA_SUM(3)
#define WGMMA_SUMS_3 WGMMA_SUMS_2, WGMMA_SUM(4), WGMMA_SUM(5)
#define WGMMA_SUMS_4 WGMMA_SUMS_3, WGMMA_SUM(6), WGMMA_SUM(7)
#define WGMMA_SUMS_5 WGMMA_SUMS_4, WGMMA_SUM(8), WGMMA_SUM(9)
#define WGMMA_SUMS_6 WGMMA_SUMS_5, WGMMA_SUM(10), WGMMA_SUM(11)
#define WGMMA_SUMS_7 WGMMA_SUMS_6, WGMMA_SUM(12), WGMMA_SUM(13)
#define WGMMA_SUMS_8 WGMMA_SUMS_7, WGMMA_SUM(14), WGMMA_SUM(15)

// d = a @ b.T, plus d if `accumulate`, with A fragments in registers: 64 rows of a, 16 * N rows of b, 16 of K.
#define WGMMA_RS(N, COLS, A0, A1, A2, A3, B, P) \
    __device__ __forceinline__ void wgmma_rs(float (&d)[2 * N][4], const u32* a, u64 b, int accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P \
                     ", 0;\n" \
                     "wgmma.mma_async.sync.aligned.m64n" #COLS "k16.f32.f16.f16 {" WGMMA_REGISTERS_##N \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}" \
                     : WGMMA_SUMS_##N \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate) \
                     : "memory"); \
    }
WGMMA_RS(1, 16, 8, 9, 10, 11, 12, 13)
WGMMA_RS(2, 32, 16, 17, 18, 19, 20, 21)
WGMMA_RS(3, 48, 24, 25, 26, 27, 28, 29)
WGMMA_RS(4, 64, 32, 33, 34, 35, 36, 37)
WGMMA_RS(5, 80, 40, 41, 42, 43, 44, 45)
WGMMA_RS(6, 96, 48, 49, 50, 51, 52, 53)
WGMMA_RS(7, 112, 56, 57, 58, 59, 60, 61)
WGMMA_RS(8, 128, 64, 65, 66, 67, 68, 69)
#undef WGMMA_RS
