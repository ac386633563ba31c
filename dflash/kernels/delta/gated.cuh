// The gated norm of a head, half(x / rms(x) * weight * silu(gate)), from the sum of squares on. That sum is one of SPLIT parts, in
// order; of a part, one of eight, each every eighth value; so that its bits are the same wherever it is made.
#pragma once

constexpr int ADDED = 8;  // sums of a part

__device__ __forceinline__ float scale_of(float sum, float eps) { return rsqrtf(__fmaf_rn(sum, 1.0f / VALUES, eps)); }

__device__ __forceinline__ unsigned short gated(float x, float scale, float weight, float gate) {
    return half_saturated(__fmul_rn(__fmul_rn(__fmul_rn(x, scale), weight), __fdividef(gate, 1.0f + __expf(-gate))));
}
