// The blocks of a head tell each other sums through memory. A sum lies beside a tag, one more than the last one there, so that
// who reads both at once knows whether it is new; all blocks of a head write in the same launches, so their tags agree.
//
// A block waits only for blocks right beside it in the grid, which are begun one after the other: those of all heads but one
// have begun together, will be done, and make room for the rest of that one.
#pragma once

__device__ __forceinline__ u64 look(const u64* told) {
    u64 x;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(x) : "l"(told) : "memory");
    return x;
}

// The tag of the next sum at `told`.
__device__ __forceinline__ u32 next_tag(const u64* told) { return (u32)(look(told) >> 32) + 1; }

__device__ __forceinline__ void tell(u64* told, u32 tag, float sum) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(told), "l"((u64)tag << 32 | __float_as_uint(sum)) : "memory");
}

// Wait for the sum with this tag.
__device__ __forceinline__ float told_sum(const u64* told, u32 tag) {
    u64 x = look(told);
    while ((u32)(x >> 32) != tag) x = look(told);
    return __uint_as_float((u32)x);
}
