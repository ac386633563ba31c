// Left context of the causal convolution: the inputs before the first row of a pass. The nearest are the accepted rows of
// the previous pass, then follows the conv state (`tail`) of the slot.
//
// Macros: TAPS of the conv; those of shape.cuh.
#pragma once
#include "shape.cuh"

#ifndef TAPS
#error "TAPS must be defined"
#endif
static_assert(TAPS >= 2 && TAPS <= 8, "2 to 8 taps");

struct ConvContext {
    const float* tail;    // (TAPS - 1, C) of the slot, the oldest first
    const float* inputs;  // (STORED_ROWS, C) of the slot, of the previous pass
    const int* accepted;
    int n_accepted;

    // Input row `steps` rows before the first row of the pass; steps is 1 to TAPS - 1.
    __device__ __forceinline__ const float* row(int steps) const {
        if (steps <= n_accepted) return inputs + (size_t)accepted[n_accepted - steps] * CHANNELS;
        return tail + (size_t)(TAPS - 1 + n_accepted - steps) * CHANNELS;
    }
    __device__ __forceinline__ float at(int steps, int channel) const { return row(steps)[channel]; }
};
