// Chunks of a prompt: 64 positions each, from multiples of 64 on, so that they do not depend on where a prompt is cut.
#pragma once

constexpr int CHUNK = 64, MATRIX = CHUNK * CHUNK;
constexpr int ATTEND = 0, ATTEND_REST = 1, SOLVE = 2, SOLVE_REST = 3, MATRICES = 4;  // of each chunk and head
constexpr int FADE = 0, STRENGTH = 1, REMAINS = 2, GATES = 3;                        // the same, CHUNK floats each

__device__ __forceinline__ int rows_of_first(int length) { return CHUNK - length % CHUNK; }

__device__ __forceinline__ int chunks_of(int n_rows, int length) {
    const int beyond = n_rows - rows_of_first(length);
    return n_rows <= 0 ? 0 : 1 + (beyond > 0 ? (beyond + CHUNK - 1) / CHUNK : 0);
}

// First row of a chunk, counted in the sequence; the first chunk may be short, and so may the last.
__device__ __forceinline__ int start_of(int chunk, int length) {
    return chunk == 0 ? 0 : rows_of_first(length) + (chunk - 1) * CHUNK;
}

__device__ __forceinline__ int size_of(int chunk, int n_rows, int length) {
    return min(n_rows, rows_of_first(length) + chunk * CHUNK) - start_of(chunk, length);
}
