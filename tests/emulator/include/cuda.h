// CUDA's built-in types, variables and functions, for kernels that g++ compiles.
//
// Functions named _rn round once and are never fused with another operation. Functions that a GPU approximates are those of
// the C library.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#include "thread.h"

#define VECTOR2(NAME, T, ALIGN) \
    struct alignas(ALIGN) NAME { \
        T x, y; \
    }; \
    inline NAME make_##NAME(T x, T y) { return {x, y}; }
#define VECTOR4(NAME, T, ALIGN) \
    struct alignas(ALIGN) NAME { \
        T x, y, z, w; \
    }; \
    inline NAME make_##NAME(T x, T y, T z, T w) { return {x, y, z, w}; }
VECTOR2(uint2, unsigned, 8)
VECTOR2(int2, int, 8)
VECTOR2(float2, float, 8)
VECTOR2(double2, double, 16)
VECTOR2(ulonglong2, unsigned long long, 16)
VECTOR4(uint4, unsigned, 16)
VECTOR4(int4, int, 16)
VECTOR4(float4, float, 16)
VECTOR4(uchar4, unsigned char, 4)
VECTOR4(char4, signed char, 4)
VECTOR4(ushort4, unsigned short, 8)
#undef VECTOR2
#undef VECTOR4

#define threadIdx (emu_thread->index)
#define blockIdx (emu_thread->block)
#define blockDim (emu_thread->block_size)
#define gridDim (emu_thread->grid_size)

namespace emu {
template <class To, class From>
inline To bits_as(From x) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To y;
    memcpy(&y, &x, sizeof y);
    return y;
}
}  // namespace emu

namespace emu {
// An int, also of a float that does not fit: the nearest one, and 0 for NaN. The conversions of kernels become this type.
struct Int {
    int value;
    template <class T>
    constexpr explicit Int(T x) : value((int)x) {}
    constexpr explicit Int(float x) : value(nearest(x)) {}
    constexpr explicit Int(double x) : value(nearest(x)) {}
    constexpr operator int() const { return value; }
    static constexpr int nearest(double x) {
        return x != x ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? -2147483647 - 1 : (int)x;
    }
};
}  // namespace emu

// Barriers.
inline void __syncthreads() { emu_barrier(0, 0, true); }
inline void __syncwarp(unsigned mask = ~0u) { emu_warp(mask, "__syncwarp", nullptr, nullptr, nullptr); }
inline void __threadfence() { asm volatile("" ::: "memory"); }
inline void __nanosleep(unsigned) { emu_poll(); }

// Functions of a warp: the last lane that arrives computes the results of all.
namespace emu {
template <class T>
struct Shuffled {
    T value;
    int from;
};

template <class T>
inline T shuffle(unsigned mask, T value, int from) {
    const Shuffled<T> mine{value, from};
    T result;
    emu_warp(mask, "__shfl_sync", &mine, &result, [](const void* const* in, void* const* out, unsigned lanes) {
        for (int lane = 0; lane < 32; ++lane) {
            if (!(lanes >> lane & 1)) continue;
            const int from = ((const Shuffled<T>*)in[lane])->from;
            *(T*)out[lane] = ((const Shuffled<T>*)in[lanes >> from & 1 ? from : lane])->value;
        }
    });
    return result;
}
}  // namespace emu

template <class T>
inline T __shfl_sync(unsigned mask, T value, int from, int width = 32) {
    return emu::shuffle(mask, value, emu_thread->lane / width * width + from % width);
}

template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int by) {
    return emu::shuffle(mask, value, emu_thread->lane ^ by);
}

template <class T>
inline T __shfl_up_sync(unsigned mask, T value, int by, int width = 32) {
    const int lane = emu_thread->lane, from = lane - by;
    return emu::shuffle(mask, value, from < lane / width * width ? lane : from);
}

template <class T>
inline T __shfl_down_sync(unsigned mask, T value, int by, int width = 32) {
    const int lane = emu_thread->lane, from = lane + by;
    return emu::shuffle(mask, value, from >= lane / width * width + width ? lane : from);
}

namespace emu {
// Reduction over the lanes of a mask.
template <class T, class Op>
inline T reduce(unsigned mask, T value, Op) {
    T result;
    emu_warp(mask, "__reduce_sync", &value, &result, [](const void* const* in, void* const* out, unsigned lanes) {
        T all = *(const T*)in[__builtin_ctz(lanes)];
        for (unsigned left = lanes & (lanes - 1); left; left &= left - 1) all = Op::of(all, *(const T*)in[__builtin_ctz(left)]);
        for (unsigned left = lanes; left; left &= left - 1) *(T*)out[__builtin_ctz(left)] = all;
    });
    return result;
}

#define REDUCTION(NAME, EXPRESSION) \
    struct NAME { \
        template <class T> \
        static T of(T a, T b) { \
            return EXPRESSION; \
        } \
    };
REDUCTION(Largest, a > b ? a : b)
REDUCTION(Smallest, a < b ? a : b)
REDUCTION(Sum, a + b)
REDUCTION(Union, a | b)
#undef REDUCTION
}  // namespace emu

template <class T>
inline T __reduce_max_sync(unsigned mask, T value) {
    return emu::reduce(mask, value, emu::Largest());
}
template <class T>
inline T __reduce_min_sync(unsigned mask, T value) {
    return emu::reduce(mask, value, emu::Smallest());
}
template <class T>
inline T __reduce_add_sync(unsigned mask, T value) {
    return emu::reduce(mask, value, emu::Sum());
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
    return emu::reduce(mask, predicate ? 1u << emu_thread->lane : 0u, emu::Union());
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

// Memory. Only one thread runs at a time, so plain accesses are atomic; the compiler must not keep values in registers.
template <class T>
inline T __ldg(const T* from) {
    return *from;
}
template <class T>
inline T __ldcs(const T* from) {
    return *from;
}
template <class T>
inline T __ldcg(const T* from) {
    __threadfence();
    return *from;
}
template <class T>
inline void __stcs(T* to, T value) {
    *to = value;
}
template <class T>
inline void __stcg(T* to, T value) {
    *to = value;
    __threadfence();
}
inline size_t __cvta_generic_to_shared(const void* p) { return (const unsigned char*)p - emu_thread->shared; }

namespace emu {
template <class T, class Op>
inline T atomic(T* at, Op op) {
    __threadfence();
    const T old = *at;
    *at = op(old);
    __threadfence();
    return old;
}
}  // namespace emu

#define ATOMIC(NAME, EXPRESSION) \
    template <class T, class U> \
    inline T NAME(T* at, U value) { \
        const T b = (T)value; \
        return emu::atomic(at, [&](T a) -> T { return EXPRESSION; }); \
    }
ATOMIC(atomicAdd, a + b)
ATOMIC(atomicExch, b)
ATOMIC(atomicMax, a > b ? a : b)
ATOMIC(atomicMin, a < b ? a : b)
ATOMIC(atomicOr, a | b)
#undef ATOMIC

// Bits.
inline float __int_as_float(int x) { return emu::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return emu::bits_as<float>(x); }
inline int __float_as_int(float x) { return emu::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return emu::bits_as<unsigned>(x); }
inline double __longlong_as_double(long long x) { return emu::bits_as<double>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clzll(unsigned long long x) { return x ? __builtin_clzll(x) : 64; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned long long)a * b >> 32; }

// Each digit of `selector` chooses a byte of b:a; with bit 3 set, its sign eight times.
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const unsigned long long bytes = a | (unsigned long long)b << 32;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned digit = selector >> 4 * i & 15, byte = bytes >> 8 * (digit & 7) & 255;
        result |= (digit & 8 ? (byte & 128 ? 255 : 0) : byte) << 8 * i;
    }
    return result;
}

inline unsigned __vmaxu2(unsigned a, unsigned b) {
    const unsigned low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff;
    return low | ((a >> 16) > (b >> 16) ? a >> 16 : b >> 16) << 16;
}

// Arithmetic.
namespace emu {
inline float rounded(float x) {
    asm("" : "+x"(x));
    return x;
}
}  // namespace emu

inline float __fadd_rn(float a, float b) { return emu::rounded(a + b); }
inline float __fsub_rn(float a, float b) { return emu::rounded(a - b); }
inline float __fmul_rn(float a, float b) { return emu::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return emu::rounded(a / b); }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frsqrt_rn(float x) { return (float)(1.0 / sqrt((double)x)); }
inline float rsqrtf(float x) { return __frsqrt_rn(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __uint2float_rn(unsigned x) { return (float)x; }
inline float __int2float_rn(int x) { return (float)x; }
inline int __float2int_rn(float x) { return (int)lrintf(x); }
inline unsigned long long __double2ull_rn(double x) {
    return x <= 0 ? 0 : x < 0x1p62 ? (unsigned long long)llrint(x) : (unsigned long long)x;
}
inline unsigned long long __float2ull_rn(float x) { return __double2ull_rn(x); }
#define __expf(x) expf(x)  // the C library has functions of these names of its own
#define __logf(x) logf(x)

template <class A, class B>
inline auto min(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    return (T)a < (T)b ? (T)a : (T)b;
}
template <class A, class B>
inline auto max(A a, B b) -> decltype(a + b) {
    typedef decltype(a + b) T;
    return (T)a > (T)b ? (T)a : (T)b;
}
