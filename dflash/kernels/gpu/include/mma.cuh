// Tensor core multiplies of a warp (mma.sync, float16 or tf32 inputs, float32 sums) and their fragments.
//
// Fragments are those of the PTX manual: of the sums, lane 4 * g + t holds rows g (elements 0, 1) and g + 8 (2, 3), columns
// 2 * t and 2 * t + 1. Matrices in shared memory are rows of float16, `stride` elements apart.
#pragma once
#include "half.cuh"
#include "ptx.cuh"

// d += a @ b: 16 rows, 8 columns, 16 of K.
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const u32* a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The same for 16 columns: d[0] and d[1] are neighbours, `b` is a result of `load_b` or `load_b_trans`.
__device__ __forceinline__ void mma_m16n16k16(float (*d)[4], const u32* a, const u32 (&b)[4]) {
    mma_m16n8k16(d[0], a, b[0], b[1]), mma_m16n8k16(d[1], a, b[2], b[3]);
}

// d += a @ b: 16 rows, 8 columns, 8 of K; float32 inputs of which the lower 13 bits are ignored.
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Four matrices of 8 x 8 float16; lane 8 * i + r gives the shared address of row r of matrix i.
__device__ __forceinline__ void ldmatrix_x4(u32 (&r)[4], u32 smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(u32 (&r)[4], u32 smem) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(smem)
                 : "memory");
}

// The transpose of a matrix of 8 x 8 float16, of which lane 4 * g + t holds columns 2 * t and 2 * t + 1 of row g.
__device__ __forceinline__ u32 transposed_8x8(u32 a) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// A fragment of 16 rows and 16 columns.
__device__ __forceinline__ void load_a(u32 (&a)[4], const u16* matrix, int stride, int row, int column, int lane) {
    ldmatrix_x4(a, smem_address(matrix + (row + lane % 16) * stride + column + lane / 16 * 8));
}

// Two B fragments for A @ B.T: rows row .. row + 7 of B in b[0], b[1], the next 8 rows in b[2], b[3]; 16 columns.
__device__ __forceinline__ void load_b(u32 (&b)[4], const u16* matrix, int stride, int row, int column, int lane) {
    ldmatrix_x4(b, smem_address(matrix + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8));
}

// Two B fragments for A @ B: columns column .. column + 7 of B in b[0], b[1], the next 8 in b[2], b[3]; 16 rows.
__device__ __forceinline__ void load_b_trans(u32 (&b)[4], const u16* matrix, int stride, int row, int column, int lane) {
    ldmatrix_x4_trans(b, smem_address(matrix + (row + lane % 16) * stride + column + lane / 16 * 8));
}

// The transpose of 16 rows and 16 columns, in the layout of the sums of two multiplies of 8 columns each.
__device__ __forceinline__ void load_d_trans(u32 (&d)[4], const u16* matrix, int stride, int row, int column, int lane) {
    ldmatrix_x4_trans(d, smem_address(matrix + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8));
}

// Sums of 16 columns, those of c before those of d, as the A fragment of a later multiply.
__device__ __forceinline__ void sums_to_a(u32 (&a)[4], const float (&c)[4], const float (&d)[4]) {
    a[0] = pack_half2(c[0], c[1]), a[1] = pack_half2(c[2], c[3]), a[2] = pack_half2(d[0], d[1]),
    a[3] = pack_half2(d[2], d[3]);
}

// The rounding errors of `sums_to_a` as an A fragment: a product with `a` and one with `lo` add up to the exact product.
__device__ __forceinline__ void sums_to_a_lo(u32 (&lo)[4], const u32 (&a)[4], const float (&c)[4], const float (&d)[4]) {
    lo[0] = half2_lo(a[0], c[0], c[1]), lo[1] = half2_lo(a[1], c[2], c[3]);
    lo[2] = half2_lo(a[2], d[0], d[1]), lo[3] = half2_lo(a[3], d[2], d[3]);
}
