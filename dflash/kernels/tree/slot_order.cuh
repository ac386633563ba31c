// Order of up to 16 drafts in a batch: the batch index of each draft's sequence, a byte each in two 64-bit integers, so that
// the order is passed to a kernel by value.
#pragma once

constexpr int NO_SEQUENCE = 255;  // the draft's sequence is not in the batch

// Batch index of the sequence of draft `draft`, or NO_SEQUENCE. `low`: drafts 0 to 7; `high`: drafts 8 to 15.
__device__ __forceinline__ int batch_sequence(int draft, unsigned long long low, unsigned long long high) {
    return (int)((draft < 8 ? low : high) >> 8 * (draft % 8)) & 255;
}
