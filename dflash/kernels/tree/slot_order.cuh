// Sequence of the batch for each of up to 16 drafts: a byte each in two integers, so that a launch passes them by value.
#pragma once

constexpr int NOWHERE = 255;

__device__ __forceinline__ int which(int guess, unsigned long long low, unsigned long long high) {
    return (int)((guess < 8 ? low : high) >> 8 * (guess % 8)) & 255;
}
