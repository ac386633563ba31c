// What a head does with a token: the log of the part of the memory that it keeps, and how far it moves to the value.
#pragma once

__device__ __forceinline__ float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }

__device__ __forceinline__ float log_decay(float alpha, float rate, float shift) {
    return __fmul_rn(rate, softplus(__fadd_rn(alpha, shift)));
}

__device__ __forceinline__ float strength(float beta) { return __fdiv_rn(1.0f, 1.0f + expf(-beta)); }
