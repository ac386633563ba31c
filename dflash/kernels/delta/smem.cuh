// Warp roles and shared memory of a block of step.cu.
//
// Consumers, threads 0 to CONSUMERS - 1, hold the state. The PRODUCER_WARPS warps after them load and convolve rows and
// normalise the read-outs. Macros: those of state.cuh; TAPS; FUSE_NORM; STAGE_INPUTS.
#pragma once
#include "apply_accepted.cuh"

#if !defined(TAPS) || !defined(FUSE_NORM) || !defined(STAGE_INPUTS)
#error "TAPS, FUSE_NORM and STAGE_INPUTS must be defined"
#endif

constexpr int BLOCK_CHANNELS = 2 * KEY_DIM + BLOCK_V;  // channels of a block: those of its q, its k and its values
constexpr int CONSUMERS = STATE_THREADS, PRODUCER_WARPS = ROWS_PER_THREAD == 2 ? 4 : 2;
constexpr int THREADS = CONSUMERS + 32 * PRODUCER_WARPS, WARPS = THREADS / 32;

struct Smem {
    float *taps, *inputs, *rows, *reads, *norm_gates, *saved, *gates, *accepted, *factors;

    __device__ __forceinline__ Smem(float* from, int row_capacity, int saved_capacity) {
        taps = from;                                      // (TAPS, BLOCK_CHANNELS), then TAPS - 1 rows of left context
        inputs = taps + (2 * TAPS - 1) * BLOCK_CHANNELS;  // (row_capacity, BLOCK_CHANNELS) before the conv
        rows =
            inputs + STAGE_INPUTS * row_capacity * BLOCK_CHANNELS;  // (row_capacity, BLOCK_CHANNELS): q, k, v, then u for v
        reads = rows + row_capacity * BLOCK_CHANNELS;               // (row_capacity, BLOCK_V)
        norm_gates = reads + row_capacity * BLOCK_V;                // (row_capacity, BLOCK_V) if FUSE_NORM
        saved = norm_gates + (FUSE_NORM ? row_capacity * BLOCK_V : 0);  // (saved_capacity, BLOCK_V, KEY_DIM)
        gates = saved + saved_capacity * BLOCK_V * KEY_DIM;             // (row_capacity, 4): decay, beta, q . k, flags
        accepted = gates + 4 * row_capacity;                            // (APPLY_ROWS, KEY_DIM + BLOCK_V)
        factors = accepted + APPLY_ROWS * (KEY_DIM + BLOCK_V);          // (APPLY_ROWS,)
    }
};
