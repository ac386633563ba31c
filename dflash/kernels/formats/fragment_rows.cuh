// Order of unpacked weight rows. In a tensor core multiply, a thread with t = lane % 4 holds the sums of columns 8 * n + 2 *
// t and 8 * n + 2 * t + 1. Rows of weights are permuted so that a thread's sums of 16 rows are four consecutive outputs (32
// rows for a gate and its up projection).
#pragma once

// Index among the unpacked rows of row i of a matrix.
__device__ __forceinline__ int fragment_row(int i) { return i / 16 * 16 + i / 2 % 2 * 8 + i % 16 / 4 * 2 + i % 2; }

// Index among the unpacked rows of row i of the gate (up = 0) or of the up projection (up = 1).
__device__ __forceinline__ int paired_fragment_row(int i, int up) { return i / 16 * 32 + i % 4 * 8 + i % 16 / 4 * 2 + up; }
