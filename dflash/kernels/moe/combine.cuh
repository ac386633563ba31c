// Sum of a row's expert outputs times their factors. The order is fixed: the expert with the largest logit first, a shared
// expert last.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/types.cuh"

template <int SLOTS, class Product>
__device__ __forceinline__ float combine(const float (&factors)[SLOTS], Product product) {
    float total = 0.0f;
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) total = __fmaf_rn(factors[slot], product(slot), total);
    return total;
}

// An RMS norm that the next multiply completes, see linear/epilogue.cuh: half(value * gain * NORM_SCALE) of each value, and
// the sum of the squares of 16 values as a tree of neighbours. Nothing is written if `halves` is null.
struct OutputNorm {
    const float* gain;
    u16* halves;
    float* squares;

    __device__ __forceinline__ u16 half_of(float value, float gain_of_column) const {
        return half_saturated(__fmul_rn(__fmul_rn(value, gain_of_column), NORM_SCALE));
    }
};
