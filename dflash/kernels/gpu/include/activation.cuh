// Activations: silu(x) = x / (1 + exp(-x)) in four formulas. Their bits differ, and tests fix the bits of each caller
// against its reference. So a caller's formula must not be exchanged for another one.
//
// Macro GELU, 1 if gates of feed forwards have GELU; undefined elsewhere.
#pragma once
#include "ptx.cuh"

// Activated values of a feed-forward layer are stored as float16 times this scale, so that they do not overflow. The down
// projection multiplies its sums by the inverse.
constexpr float INNER_SCALE = 0.015625f;

// Scale of normed values in float16 between two multiplies: it keeps large values below 65504.
constexpr float NORM_SCALE = 0.125f;

// Set x[i] = x[i] / d[i], with d[i] >= 1 and the bits of __fdiv_rn. That function branches for each quotient, so that the
// quotients of a thread wait for each other. These are the steps that it takes for usual sizes, and one branch for all.
template <int N>
__device__ __forceinline__ void divide_rn(float (&x)[N], const float (&d)[N]) {
    constexpr float LEAST = 0x1p-60f, MOST = 0x1p60f;
    float quotient[N];
    bool usual = true;
    UNROLL for (int i = 0; i < N; ++i) {
        const float about = rcp_approx(d[i]), inverse = __fmaf_rn(about, __fmaf_rn(-d[i], about, 1.0f), about);
        const float near = __fmul_rn(x[i], inverse);
        quotient[i] = __fmaf_rn(inverse, __fmaf_rn(-d[i], near, x[i]), near);
        usual &= d[i] <= MOST & fabsf(x[i]) >= LEAST & fabsf(x[i]) <= MOST;
    }
    if (usual) {
        UNROLL for (int i = 0; i < N; ++i) x[i] = quotient[i];
    } else {
        UNROLL for (int i = 0; i < N; ++i) x[i] = __fdiv_rn(x[i], d[i]);
    }
}

// Accurate expf, correctly rounded division.
__device__ __forceinline__ float silu_rn(float x) { return __fdiv_rn(x, 1.0f + expf(-x)); }

// Fast __expf, fast division.
__device__ __forceinline__ float silu_fast(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Approximate exp2 and reciprocal: a relative error of at most 2e-6 where the result is not zero in float16.
__device__ __forceinline__ float silu_approx(float x) {
    return __fmul_rn(x, rcp_approx(1.0f + exp2_approx(x * -1.442695041f)));
}

// GELU in its tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x * sigmoid(2 sqrt(2 / pi) (x + ...)).
__device__ __forceinline__ float gelu_argument(float x) {
    return x * __fmaf_rn(0.0713548162726f * x, x, 1.59576912161f);
}

// Fast __expf, correctly rounded division.
__device__ __forceinline__ float gelu(float x) { return __fdiv_rn(x, 1.0f + __expf(-gelu_argument(x))); }

// Activation of the gate of a feed forward: GELU if the macro GELU is 1, else the SiLU that is named.
#if defined(GELU) && GELU
#define ACTIVATE(silu) gelu
#else
#define ACTIVATE(silu) silu
#endif

// Activation of N gates at once, with the bits of `gelu` or `silu_rn`, the latter also with fast __expf.
template <bool FAST_EXP, int N>
__device__ __forceinline__ void activate_rn(float (&x)[N]) {
    float d[N];
    UNROLL for (int i = 0; i < N; ++i) {
#if defined(GELU) && GELU
        d[i] = 1.0f + __expf(-gelu_argument(x[i]));
#else
        d[i] = 1.0f + (FAST_EXP ? __expf(-x[i]) : expf(-x[i]));
#endif
    }
    divide_rn(x, d);
}

// 1 / (1 + exp(-x)): accurate expf, correctly rounded division.
__device__ __forceinline__ float sigmoid_rn(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }

// x * sigmoid(gate): accurate expf, one correctly rounded division.
__device__ __forceinline__ float mul_sigmoid_rn(float x, float gate) { return __fdiv_rn(x, 1.0f + expf(-gate)); }

// The same for N values at once.
template <int N>
__device__ __forceinline__ void mul_sigmoid_rn(float (&x)[N], const float (&gate)[N]) {
    float d[N];
    UNROLL for (int i = 0; i < N; ++i) d[i] = 1.0f + expf(-gate[i]);
    divide_rn(x, d);
}
