// What a head does with a token: the log of the part of the memory that it keeps, and how far it moves to the value.
#pragma once
#include "../gpu/include/activation.cuh"

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float log_decay(float alpha, float rate, float shift) {
    return __fmul_rn(rate, softplus(__fadd_rn(alpha, shift)));
}

__device__ __forceinline__ float strength(float beta) { return sigmoid_rn(beta); }
