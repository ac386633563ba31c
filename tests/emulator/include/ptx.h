// PTX instructions as functions; operands are those of the inline assembly, results come first. See ptx.py.
#pragma once
#include "cuda.h"

namespace emu {
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned u32;
typedef unsigned long long u64;

template <class... Operands>
inline void ptx_ignore(const Operands&...) {
    asm volatile("" ::: "memory");
}

inline void check_aligned(u64 address, int n, const char* what) {
    if (address % n) emu_fail(what);
}

// float16
inline float half_value(u16 h) { return _cvtsh_ss(h); }
inline u16 half_of(float x) { return _cvtss_sh(x, 0); }
inline u32 half2_of(float low, float high) { return half_of(low) | (u32)half_of(high) << 16; }
inline void ptx_cvt_f32_f16(float& d, u16 h) { d = half_value(h); }
inline void ptx_cvt_f16_f32(u16& d, float x) { d = half_of(x); }
inline void ptx_cvt_f16x2_f32(u32& d, float high, float low) { d = half2_of(low, high); }
inline void ptx_min_65504(float& x) { x = x > 65504.0f ? 65504.0f : x; }
inline void ptx_max_65504(float& x) { x = x < -65504.0f ? -65504.0f : x; }
#define HALF2(NAME, OP) \
    inline void ptx_##NAME##_f16x2(u32& d, u32 a, u32 b) { \
        d = half2_of(half_value(a) OP half_value(b), half_value(a >> 16) OP half_value(b >> 16)); \
    }
HALF2(add, +)
HALF2(sub, -)
HALF2(mul, *)
#undef HALF2

// One rounding of a * b + c, which double holds exactly up to a bit that can't decide: through a float rounded to odd.
inline u16 half_fma(float a, float b, float c) {
    const double exact = (double)a * b + c;
    const float near = (float)exact;
    u32 bits = bits_as<u32>(near);
    if ((double)near != exact) {
        if (std::fabs((double)near) > std::fabs(exact)) --bits;  // toward zero
        bits |= 1;
    }
    return half_of(bits_as<float>(bits));
}
inline void ptx_fma_f16x2(u32& d, u32 a, u32 b, u32 c) {
    d = half_fma(half_value(a), half_value(b), half_value(c)) |
        (u32)half_fma(half_value(a >> 16), half_value(b >> 16), half_value(c >> 16)) << 16;
}
inline void ptx_high_twice(u32& d, u32 pair) { d = (pair >> 16) * 0x10001u; }
inline void ptx_low_twice(u32& d, u32 pair) { d = (pair & 0xffff) * 0x10001u; }
inline void ptx_ex2(float& d, float x) { d = exp2f(x); }
inline void ptx_rcp(float& d, float x) { d = 1.0f / x; }

// Shared memory, of this block or another one of the cluster
template <class T, int N>
inline void store_shared(u32 to, const T (&values)[N]) {
    check_aligned(to, sizeof values, "st.shared: misaligned");
    memcpy(emu_at(to), values, sizeof values);
}
inline void ptx_st_shared_b32x4(u32 to, u32 x, u32 y, u32 z, u32 w) { store_shared(to, {x, y, z, w}); }
inline void ptx_st_shared_f32x2(u32 to, float x, float y) { store_shared(to, {x, y}); }
inline void ptx_st_shared_f32x4(u32 to, float x, float y, float z, float w) { store_shared(to, {x, y, z, w}); }
inline void ptx_st_shared_if(int condition, u32 to, float x) {
    if (condition) store_shared(to, {x});
}
inline void ptx_ld_shared_f32x4(float& x, float& y, float& z, float& w, u32 from) {
    check_aligned(from, 16, "ld.shared: misaligned");
    const float* v = (const float*)emu_at(from);
    x = v[0], y = v[1], z = v[2], w = v[3];
}
inline void ptx_mapa(u32& d, u32 address, int rank) { d = (address & 0xffffff) | (u32)(rank + 1) << 24; }
inline void ptx_st_async(u32 to, u32 value, u32 barrier) {
    store_shared(to, {value});
    emu_mbarrier_complete(barrier, 4);
}

// Barriers
inline void ptx_bar_sync(int id, int n) { emu_barrier(id, n, true); }
inline void ptx_bar_arrive(int id, int n) { emu_barrier_arrive(id, n); }
inline void ptx_bar_red_and(u32& d, u32 predicate, int id, int n) { d = emu_barrier(id, n, predicate != 0); }
inline void ptx_elect(u32& d) { d = emu_thread->lane == 0; }
inline void ptx_cluster_arrive() { emu_cluster_arrive(); }
inline void ptx_cluster_wait() { emu_cluster_wait(); }
inline void ptx_cluster_sync() { emu_cluster_arrive(), emu_cluster_wait(); }
inline void ptx_mbarrier_init(u32 barrier, int arrivals) { emu_mbarrier_init(barrier, arrivals); }
inline void ptx_mbarrier_arrive(u32 barrier, int arrivals = 1) { emu_mbarrier_arrive(barrier, arrivals); }
inline void ptx_mbarrier_arrive_expect(u32 barrier, int n_bytes) { emu_mbarrier_arrive_expect(barrier, n_bytes); }
inline void ptx_mbarrier_wait(u32 barrier, u32 parity) { emu_mbarrier_wait(barrier, parity); }
inline void ptx_mbarrier_test(u32& d, u32 barrier, u32 parity) { emu_mbarrier_wait(barrier, parity), d = 1; }

// Copies, complete as soon as they begin
inline void copy_shared(u32 to, const void* from, int n_bytes, int unit) {
    check_aligned((u64)from | to | n_bytes, unit, "asynchronous copy: misaligned");
    memcpy(emu_at(to), from, n_bytes);
}
inline void ptx_cp_async_4(u32 to, const void* from) { copy_shared(to, from, 4, 4); }
inline void ptx_cp_async_16(u32 to, const void* from) { copy_shared(to, from, 16, 16); }
inline void ptx_cp_async_zfill(u32 to, const void* from, int n_bytes) {
    memset(emu_at(to), 0, 16);
    if (n_bytes) copy_shared(to, from, n_bytes, 4);
}
template <class... Policy>
inline void ptx_bulk(u32 to, const void* from, int n_bytes, u32 barrier, Policy...) {
    copy_shared(to, from, n_bytes, 16);
    emu_mbarrier_complete(barrier, n_bytes);
}

// The emulator's CUtensorMap, see cuTensorMapEncodeTiled in driver.cpp.
struct EmulatedMap {
    u64 address, columns, rows, stride, box_columns, box_rows, item, swizzled;
};

inline u32 swizzle(u32 address) { return address ^ (address >> 7 & 7) << 4; }  // of 128 bytes

inline void ptx_tma_2d(u32 to, const void* of, int column, int row, u32 barrier) {
    const EmulatedMap& map = *(const EmulatedMap*)of;
    check_aligned(to, 128, "tensor copy: misaligned");
    for (int r = 0; r < (int)map.box_rows; ++r) {
        for (int c = 0; c < (int)map.box_columns; ++c) {
            const u32 plain = to + (r * map.box_columns + c) * map.item;
            const long long y = (long long)row + r, x = (long long)column + c;
            const bool inside = y >= 0 && y < (long long)map.rows && x >= 0 && x < (long long)map.columns;
            u8* at = emu_at(map.swizzled ? swizzle(plain) : plain);
            if (inside) memcpy(at, (const void*)(map.address + y * map.stride + x * map.item), map.item);
            else memset(at, 0, map.item);
        }
    }
    emu_mbarrier_complete(barrier, map.box_rows * map.box_columns * map.item);
}

// Memory that other blocks or GPUs write meanwhile
template <class T, int N>
inline void load_polled(T* const (&d)[N], const void* from) {
    emu_poll();
    for (int i = 0; i < N; ++i) *d[i] = ((const volatile T*)from)[i];
}
inline void ptx_ld_u64(u64& d, const void* from) { load_polled<u64, 1>({&d}, from); }
inline void ptx_ld_u32(u32& d, const void* from) { load_polled<u32, 1>({&d}, from); }
inline void ptx_ld_f32(float& d, const void* from) { load_polled<float, 1>({&d}, from); }
inline void ptx_ld_u32x4(u32& x, u32& y, u32& z, u32& w, const void* from) { load_polled<u32, 4>({&x, &y, &z, &w}, from); }
inline void ptx_ld_f32x4(float& x, float& y, float& z, float& w, const void* from) {
    load_polled<float, 4>({&x, &y, &z, &w}, from);
}
inline void ptx_st_u16(void* to, u16 value) { *(volatile u16*)to = value; }
inline void ptx_st_u32(void* to, u32 value) { *(volatile u32*)to = value; }
inline void ptx_st_u32x2(void* to, u32 x, u32 y) { ptx_st_u32(to, x), ptx_st_u32((u32*)to + 1, y); }
inline void ptx_st_f32(void* to, float value) { *(volatile float*)to = value; }
inline void ptx_red_add_u64(u64 to, u64 n) { *(volatile u64*)to += n; }
inline void ptx_red_add_f32x4(float* to, float x, float y, float z, float w) {
    check_aligned((u64)to, 16, "red: misaligned");
    const float values[4] = {x, y, z, w};
    for (int i = 0; i < 4; ++i) to[i] = rounded(to[i] + values[i]);
}
inline void ptx_globaltimer(u64& d) { d = 0; }  // so that no wait is too long
inline void ptx_trap() { emu_fail("trap"); }
}  // namespace emu
