// Rotary angles of a row: cosines and sines of float(position) * inv_freq, times `gain`.
//
// The angle is one float32 product. Sine and cosine are computed in float64 and rounded to float32.
#pragma once

// Store the angles of `row`. Called by all threads of a block.
__device__ __forceinline__ void store_angles(size_t row, int position, const float* inv_freq, float gain, int pairs,
                                             float* cosines, float* sines) {
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        double sine, cosine;
        sincos((double)__fmul_rn((float)position, inv_freq[j]), &sine, &cosine);
        cosines[row * pairs + j] = __fmul_rn((float)cosine, gain);
        sines[row * pairs + j] = __fmul_rn((float)sine, gain);
    }
}
