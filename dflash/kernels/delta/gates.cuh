// Gates of a head and token: g, the natural log of the decay factor, and beta, the write strength.
#pragma once
#include "../gpu/include/activation.cuh"

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float log_decay(float alpha, float rate, float shift) {
    return __fmul_rn(rate, softplus(__fadd_rn(alpha, shift)));
}

__device__ __forceinline__ float beta_of(float logit) { return sigmoid_rn(logit); }
