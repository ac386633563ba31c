// Asynchronous tensor core multiplies of a warpgroup (wgmma, sm_90a): float16 inputs and float32 sums, or int8 and int32.
//
// Sums: d[n][2 * r + e] is row lane / 4 + 8 * r of the warp's 16 of 64 rows, column 8 * n + 2 * (lane % 4) + e. Operands in
// shared memory are rows of 128 bytes (64 float16) with the 128-byte swizzle: 16-byte chunk c of row r is stored at chunk c
// ^ r % 8, as TMA writes it. The first row is aligned to 1024 bytes. A multiply uses 16 of the 64 columns; the next 16 are
// 32 bytes further on.
#pragma once
#include "sm90.cuh"

// Matrix descriptor of an operand whose blocks of 64 columns are `block_bytes` apart. It has no effect for a single block.
__device__ __forceinline__ u64 wgmma_descriptor(u32 smem, u32 block_bytes = 16) {
    return 1ull << 62 | (u64)(1024 >> 4) << 32 | (u64)(block_bytes >> 4) << 16 | (smem & 0x3ffff) >> 4;
}

// Descriptor of an operand of 16 columns without swizzle: blocks of 8 rows and 8 columns, 128 bytes each. Those of the next 8
// columns and of the next 8 rows are `columns_apart` and `rows_apart` bytes further on.
__device__ __forceinline__ u64 wgmma_descriptor_of_blocks(u32 smem, u32 columns_apart, u32 rows_apart) {
    return (u64)(rows_apart >> 4) << 32 | (u64)(columns_apart >> 4) << 16 | (smem & 0x3ffff) >> 4;
}

// Operands of the sums of 16 * N columns in an instruction, and their placeholders.
#define WGMMA_REGISTERS_1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_REGISTERS_2 WGMMA_REGISTERS_1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_3 WGMMA_REGISTERS_2 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGISTERS_4 WGMMA_REGISTERS_3 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_5 WGMMA_REGISTERS_4 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_REGISTERS_6 WGMMA_REGISTERS_5 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_REGISTERS_7 WGMMA_REGISTERS_6 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_REGISTERS_8 WGMMA_REGISTERS_7 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_10 \
    WGMMA_REGISTERS_8 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_REGISTERS_12 \
    WGMMA_REGISTERS_10 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_REGISTERS_16 \
    WGMMA_REGISTERS_12 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define WGMMA_REGISTER "+f"
#define WGMMA_SUM(n) WGMMA_REGISTER(d[n][0]), WGMMA_REGISTER(d[n][1]), WGMMA_REGISTER(d[n][2]), WGMMA_REGISTER(d[n][3])
#define WGMMA_SUMS_1 WGMMA_SUM(0), WGMMA_SUM(1)
#define WGMMA_SUMS_2 WGMMA_SUMS_1, WGMMA_SUM(2), WGMMA_SUM(3)
#define WGMMA_SUMS_3 WGMMA_SUMS_2, WGMMA_SUM(4), WGMMA_SUM(5)
#define WGMMA_SUMS_4 WGMMA_SUMS_3, WGMMA_SUM(6), WGMMA_SUM(7)
#define WGMMA_SUMS_5 WGMMA_SUMS_4, WGMMA_SUM(8), WGMMA_SUM(9)
#define WGMMA_SUMS_6 WGMMA_SUMS_5, WGMMA_SUM(10), WGMMA_SUM(11)
#define WGMMA_SUMS_7 WGMMA_SUMS_6, WGMMA_SUM(12), WGMMA_SUM(13)
#define WGMMA_SUMS_8 WGMMA_SUMS_7, WGMMA_SUM(14), WGMMA_SUM(15)
#define WGMMA_SUMS_8_FROM(n) \
    WGMMA_SUM(n), WGMMA_SUM(n + 1), WGMMA_SUM(n + 2), WGMMA_SUM(n + 3), WGMMA_SUM(n + 4), WGMMA_SUM(n + 5), \
        WGMMA_SUM(n + 6), WGMMA_SUM(n + 7)
#define WGMMA_SUMS_10 WGMMA_SUMS_8, WGMMA_SUM(16), WGMMA_SUM(17), WGMMA_SUM(18), WGMMA_SUM(19)
#define WGMMA_SUMS_12 WGMMA_SUMS_8, WGMMA_SUMS_8_FROM(16)
#define WGMMA_SUMS_16 WGMMA_SUMS_12, WGMMA_SUMS_8_FROM(24)

// d = a @ b.T, plus d if `accumulate`, with both operands in shared memory: 64 rows of a, 16 * N rows of b, 16 of K.
#define WGMMA_SS(N, COLS, A, B, P) \
    __device__ __forceinline__ void wgmma_ss(float (&d)[2 * N][4], u64 a, u64 b, int accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLS \
                     "k16.f32.f16.f16 {" WGMMA_REGISTERS_##N "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}" \
                     : WGMMA_SUMS_##N \
                     : "l"(a), "l"(b), "r"(accumulate)); \
    }
WGMMA_SS(4, 64, 32, 33, 34)
WGMMA_SS(6, 96, 48, 49, 50)
WGMMA_SS(8, 128, 64, 65, 66)
WGMMA_SS(10, 160, 80, 81, 82)
WGMMA_SS(12, 192, 96, 97, 98)
WGMMA_SS(16, 256, 128, 129, 130)
#undef WGMMA_SS

// d += a @ b, with A fragments in registers: 16 rows of b, transposed as they are read; 64 or 128 columns of b.
#define WGMMA_RS_TRANS_B(N, COLS, A0, A1, A2, A3, B) \
    __device__ __forceinline__ void wgmma_rs_trans_b_##COLS(float (*d)[4], const u32* a, u64 b) { \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLS "k16.f32.f16.f16 {" WGMMA_REGISTERS_##N \
                     "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;" \
                     : WGMMA_SUMS_##N \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b)); \
    }
WGMMA_RS_TRANS_B(4, 64, 32, 33, 34, 35, 36)
WGMMA_RS_TRANS_B(8, 128, 64, 65, 66, 67, 68)
#undef WGMMA_RS_TRANS_B

// d = a @ b.T, plus d if `accumulate`, with A fragments in registers: 64 rows of a, 16 * N rows of b, 16 of K.
#define WGMMA_RS(N, COLS, A0, A1, A2, A3, B, P) \
    __device__ __forceinline__ void wgmma_rs(float (&d)[2 * N][4], const u32* a, u64 b, int accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLS \
                     "k16.f32.f16.f16 {" WGMMA_REGISTERS_##N \
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

// d = a @ b.T of whole numbers of 8 bits, plus d if `accumulate`, with both operands in shared memory, rows of 128 columns: 64
// rows of a, 16 * N rows of b, 32 of K, which are 32 bytes, too.
#undef WGMMA_REGISTER
#define WGMMA_REGISTER "+r"
#define WGMMA_SS_BYTES(N, COLS, A, B, P) \
    __device__ __forceinline__ void wgmma_ss(int (&d)[2 * N][4], u64 a, u64 b, int accumulate) { \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\nwgmma.mma_async.sync.aligned.m64n" #COLS \
                     "k32.s32.s8.s8 {" WGMMA_REGISTERS_##N "}, %" #A ", %" #B ", p;\n}" \
                     : WGMMA_SUMS_##N \
                     : "l"(a), "l"(b), "r"(accumulate)); \
    }
WGMMA_SS_BYTES(6, 96, 48, 49, 50)
WGMMA_SS_BYTES(12, 192, 96, 97, 98)
#undef WGMMA_SS_BYTES
