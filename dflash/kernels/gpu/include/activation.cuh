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

// Accurate expf, correctly rounded division.
__device__ __forceinline__ float silu_rn(float x) { return __fdiv_rn(x, 1.0f + expf(-x)); }

// Fast __expf, correctly rounded division.
__device__ __forceinline__ float silu_fast_exp(float x) { return __fdiv_rn(x, 1.0f + __expf(-x)); }

// Fast __expf, fast division.
__device__ __forceinline__ float silu_fast(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Approximate exp2 and reciprocal: a relative error of at most 2e-6 where the result is not zero in float16.
__device__ __forceinline__ float silu_approx(float x) {
    return __fmul_rn(x, rcp_approx(1.0f + exp2_approx(x * -1.442695041f)));
}

// GELU in its tanh form, 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), as x * sigmoid(2 sqrt(2 / pi) (x + ...)): fast
// __expf, correctly rounded division.
__device__ __forceinline__ float gelu(float x) {
    const float u = x * __fmaf_rn(0.0713548162726f * x, x, 1.59576912161f);
    return __fdiv_rn(x, 1.0f + __expf(-u));
}

// Activation of the gate of a feed forward: GELU if the macro GELU is 1, else the SiLU that is named.
#if defined(GELU) && GELU
#define ACTIVATE(silu) gelu
#else
#define ACTIVATE(silu) silu
#endif

// 1 / (1 + exp(-x)): accurate expf, correctly rounded division.
__device__ __forceinline__ float sigmoid_rn(float x) { return __fdiv_rn(1.0f, 1.0f + expf(-x)); }

// x * sigmoid(gate): accurate expf, one correctly rounded division.
__device__ __forceinline__ float mul_sigmoid_rn(float x, float gate) { return __fdiv_rn(x, 1.0f + expf(-gate)); }
