// Fragments of matrices of halves in shared memory, whose rows lie `stride` halves apart, for `mma`.
#pragma once

__device__ __forceinline__ u32 shared_at(const u16* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load_matrices(u32 (&r)[4], const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}

__device__ __forceinline__ void load_turned(u32 (&r)[4], const u16* p) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_at(p)));
}

// 16 rows and 16 columns as the left operand.
__device__ __forceinline__ void load_left(u32 (&a)[4], const u16* matrix, int stride, int row, int column, int lane) {
    load_matrices(a, matrix + (row + lane % 16) * stride + column + lane / 16 * 8);
}

// 16 rows and 16 columns of B, where the product is A @ B.T: two right operands of 8 rows each.
__device__ __forceinline__ void load_right(u32 (&b)[4], const u16* matrix, int stride, int row, int column, int lane) {
    load_matrices(b, matrix + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8);
}

// 16 rows and 16 columns of B, where the product is A @ B: two right operands of 8 columns each.
__device__ __forceinline__ void load_right_turned(u32 (&b)[4], const u16* matrix, int stride, int row, int column,
                                                  int lane) {
    load_turned(b, matrix + (row + lane % 16) * stride + column + lane / 16 * 8);
}

// The transpose of 16 rows and 16 columns, as two results of 8 rows each hold it.
__device__ __forceinline__ void load_result_turned(u32 (&c)[4], const u16* matrix, int stride, int row, int column,
                                                   int lane) {
    load_turned(c, matrix + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2 * 8);
}

// Two numbers as halves, `low` in the lower one.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 d;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
    return d;
}

// Two results that lie side by side, as one left operand: rounded, and what the rounding left out.
__device__ __forceinline__ void to_left(u32 (&a)[4], const float (&c)[4], const float (&d)[4]) {
    a[0] = pack(c[0], c[1]), a[1] = pack(c[2], c[3]), a[2] = pack(d[0], d[1]), a[3] = pack(d[2], d[3]);
}

__device__ __forceinline__ u32 rest2(u32 rounded, float low, float high) {
    return pack(low - to_float((u16)rounded), high - to_float((u16)(rounded >> 16)));
}

__device__ __forceinline__ void rest_of_left(u32 (&rest)[4], const u32 (&a)[4], const float (&c)[4], const float (&d)[4]) {
    rest[0] = rest2(a[0], c[0], c[1]), rest[1] = rest2(a[1], c[2], c[3]);
    rest[2] = rest2(a[2], d[0], d[1]), rest[3] = rest2(a[3], d[2], d[3]);
}

// 16 bytes into shared memory, or zeros.
__device__ __forceinline__ void copy_16_or_zero(u16* to, const u16* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
