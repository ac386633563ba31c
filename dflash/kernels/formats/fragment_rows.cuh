// Order of unpacked weight rows. A thread of a tensor core multiply holds the sums of columns 8 * n + 2 * t and the next one,
// t = lane % 4. Rows of weights are permuted so that the sums which a thread holds of 16 rows (32 of a gate and its up projection)
// are four consecutive outputs.
#pragma once

// Where row i of a matrix stands among the unpacked rows.
__device__ __forceinline__ int fragment_row(int i) { return i / 16 * 16 + i / 2 % 2 * 8 + i % 16 / 4 * 2 + i % 2; }

// Where row i of the gate (up = 0) or of the up projection (up = 1) stands.
__device__ __forceinline__ int paired_fragment_row(int i, int up) { return i / 16 * 32 + i % 4 * 8 + i % 16 / 4 * 2 + up; }
