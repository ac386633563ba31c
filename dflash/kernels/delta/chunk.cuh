// Chunks of a prefill: 64 positions each, aligned to multiples of 64 of the sequence, so that they do not depend on how a
// prompt is divided into passes. Each chunk and value head has N_MATRICES matrices (CHUNK, CHUNK) of float16 and N_GATES
// vectors (CHUNK,) of float32:
//
//   QK_MASKED     exp(g_i - g_j) q_i . k_j for j <= i; QK_MASKED_LO its rounding error
//   WY_INVERSE    inverse of I + M, see chunk_wy.cu; WY_INVERSE_LO its rounding error
//   DECAY         exp(g_i), with g the running sum of log decays in the chunk
//   BETA          write strength
//   DECAY_TO_END  exp(g_last - g_i)
#pragma once

constexpr int CHUNK = 64, MATRIX_SIZE = CHUNK * CHUNK;
constexpr int QK_MASKED = 0, QK_MASKED_LO = 1, WY_INVERSE = 2, WY_INVERSE_LO = 3, N_MATRICES = 4;
constexpr int DECAY = 0, BETA = 1, DECAY_TO_END = 2, N_GATES = 3;

// Rows of the first chunk if no row is missing; `length`: positions that the sequence has already.
__device__ __forceinline__ int rows_of_first(int length) { return CHUNK - length % CHUNK; }

// Number of chunks of `n_rows` new rows.
__device__ __forceinline__ int chunks_of(int n_rows, int length) {
    const int beyond = n_rows - rows_of_first(length);
    return n_rows <= 0 ? 0 : 1 + (beyond > 0 ? (beyond + CHUNK - 1) / CHUNK : 0);
}

// First row of a chunk among the rows of the sequence. The first and the last chunk may be shorter.
__device__ __forceinline__ int start_of(int chunk, int length) {
    return chunk == 0 ? 0 : rows_of_first(length) + (chunk - 1) * CHUNK;
}

__device__ __forceinline__ int size_of(int chunk, int n_rows, int length) {
    return min(n_rows, rows_of_first(length) + chunk * CHUNK) - start_of(chunk, length);
}
