// What kernels need of half precision, asynchronous copies and tensor cores, as PTX: no header has to be found.
#pragma once

typedef unsigned int u32;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned long long u64;

__device__ __forceinline__ float to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ u16 to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// As `to_half`, but at most 65504 in size; NaN stays.
__device__ __forceinline__ u16 half_saturated(float f) {
    asm("min.NaN.f32 %0, %0, 0f477FE000;" : "+f"(f));
    asm("max.NaN.f32 %0, %0, 0fC77FE000;" : "+f"(f));
    return to_half(f);
}

// The inner values of a feed forward are stored times this, and the projection after multiplies its sums by the inverse.
constexpr float INNER_SCALE = 0.015625f;

// `low` in the lower half, `high` in the upper.
__device__ __forceinline__ u32 to_half2(float low, float high) {
    return to_half(low) | (u32)to_half(high) << 16;
}

__device__ __forceinline__ u32 sub2(u32 a, u32 b) {
    u32 d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ u32 mul2(u32 a, u32 b) {
    u32 d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

__device__ __forceinline__ u32 fma2(u32 a, u32 b, u32 c) {
    u32 d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Two integers of at most 10 bits, one in each half, less `bias`, as halves: exact, since 0x6400 is 1024.
__device__ __forceinline__ u32 integers(u32 pair, u32 bias) {
    return sub2(pair | 0x64006400u, (0x6400u + bias) * 0x10001u);
}

// d += a @ b: 16 rows, 16 of K, 8 tokens.
__device__ __forceinline__ void mma(float (&d)[4], const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void copy_16(u32 shared, const void* global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}

// 16 zeros instead where it isn't `inside`; nothing is read then.
__device__ __forceinline__ void copy_16_or_zeros(u32 shared, const void* global, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(inside ? 16 : 0) : "memory");
}

__device__ __forceinline__ void copy_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
