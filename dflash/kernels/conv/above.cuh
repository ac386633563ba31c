// What a channel of the conv sees above the first row of a pass: the rows of the pass before that are text now, then the
// tail of the text.
#pragma once

struct Above {
    const float* tail;    // (TAPS - 1, channels) of the slot, the oldest first
    const float* inputs;  // (PENDING, channels) of the slot, on the side of the pass before
    const int* kept;
    int n_kept;

    // Where the input `steps` rows above the first one lies: 1 to TAPS - 1.
    __device__ __forceinline__ const float* row(int steps) const {
        if (steps <= n_kept) return inputs + (size_t)kept[n_kept - steps] * CHANNELS;
        return tail + (size_t)(TAPS - 1 + n_kept - steps) * CHANNELS;
    }
    __device__ __forceinline__ float at(int steps, int channel) const { return row(steps)[channel]; }
};
