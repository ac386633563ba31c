// Which sequence of a batch each of up to 16 guesses is of: a byte each in two numbers, so that a launch can bring them along.
#pragma once

constexpr int NOWHERE = 255;

__device__ __forceinline__ int which(int guess, unsigned long long low, unsigned long long high) {
    return (int)((guess < 8 ? low : high) >> 8 * (guess % 8)) & 255;
}
