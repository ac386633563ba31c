// What Hopper adds, as PTX: the copy engine, multiplies by groups of four warps.
#pragma once
#include "barriers.cuh"

struct alignas(64) TensorMap {
    u64 words[16];
};

// Copy a box that begins at row `row` and column `column` to shared memory.
__device__ __forceinline__ void copy_box(u32 shared, const TensorMap& map, int column, int row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(shared), "l"(&map), "r"(column), "r"(row), "r"(barrier)
                 : "memory");
}

// Copy bytes that follow each other, a multiple of 16.
__device__ __forceinline__ void copy_line(u32 shared, const void* global, int n_bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
                 "l"(global), "r"(n_bytes), "r"(barrier)
                 : "memory");
}

template <int N>
__device__ __forceinline__ void fewer_registers() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
__device__ __forceinline__ void more_registers() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

// Rows of 128 bytes, swizzled as the copy engine does; eight of them are 1024 bytes, to which they are aligned.
__device__ __forceinline__ u64 matrix_at(u32 shared) {
    return (shared & 0x3ffff) >> 4 | 1ull << 16 | 64ull << 32 | 1ull << 62;
}

__device__ __forceinline__ void multiply_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

// Until the multiplies are done; the other group's go on.
__device__ __forceinline__ void multiply_end() {
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#define ACCUMULATOR_4(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define ACCUMULATOR_8(n) ACCUMULATOR_4(n), ACCUMULATOR_4(n + 1)
#define ACCUMULATOR_32(n) ACCUMULATOR_8(n), ACCUMULATOR_8(n + 2), ACCUMULATOR_8(n + 4), ACCUMULATOR_8(n + 6)

// What ordinary stores wrote to shared memory may now be read by multiplies and the copy engine, after a barrier.
__device__ __forceinline__ void stores_are_ready() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// d = a @ b.T, added to d if `more`: 64 rows of a, 16 of K; d[n][2 * r + e] is of row lane / 4 + 8 * r of the warp's 16.
__device__ __forceinline__ void multiply(float (&d)[8][4], u64 a, u64 b, int more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, more, 1, 1, 0, 0;\n}"
                 : ACCUMULATOR_32(0)
                 : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void multiply(float (&d)[16][4], u64 a, u64 b, int more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, more, 1, 1, 0, 0;\n}"
                 : ACCUMULATOR_32(0), ACCUMULATOR_32(8)
                 : "l"(a), "l"(b), "r"(more));
}

__device__ __forceinline__ void multiply(float (&d)[32][4], u64 a, u64 b, int more) {
    asm volatile("{\n.reg .pred more;\nsetp.ne.b32 more, %130, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
                 "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
                 "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
                 "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
                 "%128, %129, more, 1, 1, 0, 0;\n}"
                 : ACCUMULATOR_32(0), ACCUMULATOR_32(8), ACCUMULATOR_32(16), ACCUMULATOR_32(24)
                 : "l"(a), "l"(b), "r"(more));
}
