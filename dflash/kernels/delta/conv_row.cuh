// Convolution, SiLU and normalisation of one row by a producer warp: q with unit length times KEY_DIM^-0.5, k with unit
// length, v.
//
// Macros: those of smem.cuh.
#pragma once
#include "../gpu/include/activation.cuh"
#include "smem.cuh"
#include "unit_keys.cuh"

constexpr int VALUES_PER_LANE = (BLOCK_V + 31) / 32, CHANNELS_PER_LANE = 2 * KEYS_PER_LANE + VALUES_PER_LANE;

// Channels of a block that a lane handles: KEYS_PER_LANE of q, KEYS_PER_LANE of k, VALUES_PER_LANE of v. Some may be past
// the end (`exists`).
struct Channels {
    int lane;

    __device__ __forceinline__ int offset(int i) const {
        return (i < 2 * KEYS_PER_LANE ? i % KEYS_PER_LANE : i - 2 * KEYS_PER_LANE) * 32 + lane;
    }
    __device__ __forceinline__ bool exists(int i) const {
        return i < 2 * KEYS_PER_LANE ? KEY_DIM % 32 == 0 || offset(i) < KEY_DIM : BLOCK_V % 32 == 0 || offset(i) < BLOCK_V;
    }
    __device__ __forceinline__ int at(int i) const {
        return (i < KEYS_PER_LANE ? 0 : i < 2 * KEYS_PER_LANE ? KEY_DIM : 2 * KEY_DIM) + offset(i);
    }
};

// The taps of a lane's channels.
struct Taps {
    float of[TAPS][CHANNELS_PER_LANE];

    __device__ __forceinline__ void load(const float* taps, const Channels& channels) {
        UNROLL for (int t = 0; t < TAPS; ++t)
            UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i)
                of[t][i] = channels.exists(i) ? taps[t * BLOCK_CHANNELS + channels.at(i)] : 0.0f;
    }
};

// Addresses at which the inputs and the key of a row are stored for later passes, at the block's first channel. Null: not
// stored.
struct RowOutputs {
    float *q, *k, *values, *key;
};

// Produce row `row` for visit `position`. `above`: its ancestors, a byte each, the nearest first. `keys` and `values`:
// inputs of row 0 in global memory; `keys` points at those of q, after which those of k follow.
__device__ __forceinline__ void conv_row(const Taps& taps, const Smem& smem, const float* keys, const float* values, int row,
                                         u64 above, int position, const RowOutputs& outputs, const Channels& channels) {
    float x[CHANNELS_PER_LANE]{}, input[CHANNELS_PER_LANE];
    UNROLL for (int t = 0; t < TAPS; ++t) {
        const int from = t < TAPS - 1 ? (signed char)(above >> 8 * (TAPS - 2 - t)) : row;
        const bool in_smem = STAGE_INPUTS || from < 0;
        const float* const q = in_smem ? smem.inputs + from * BLOCK_CHANNELS : keys + from * CHANNELS;
        const float* const k = q + (in_smem ? KEY_DIM : KEY_HEADS * KEY_DIM);
        const float* const v = in_smem ? q + 2 * KEY_DIM : values + from * CHANNELS;
        UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
            input[i] = channels.exists(i) ? (i < KEYS_PER_LANE       ? q
                                             : i < 2 * KEYS_PER_LANE ? k
                                                                     : v)[channels.offset(i)]
                                          : 0.0f;
            x[i] = __fmaf_rn(taps.of[t][i], input[i], x[i]);
        }
    }
    UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
        float* const to = i < KEYS_PER_LANE ? outputs.q : i < 2 * KEYS_PER_LANE ? outputs.k : outputs.values;
        if (to && channels.exists(i)) to[channels.offset(i)] = input[i];
    }
    UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) x[i] = silu_fast(x[i]);
    const UnitKeys unit(x, x + KEYS_PER_LANE);
    float* const line = smem.rows + position * BLOCK_CHANNELS;
    UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
        if (!channels.exists(i)) continue;
        const float result = i < KEYS_PER_LANE       ? __fmul_rn(x[i], unit.of_q)
                             : i < 2 * KEYS_PER_LANE ? __fmul_rn(x[i], unit.of_k)
                                                     : x[i];
        line[channels.at(i)] = result;
        if (i >= KEYS_PER_LANE && i < 2 * KEYS_PER_LANE && outputs.key) outputs.key[channels.offset(i)] = result;
    }
    if (channels.lane == 0) smem.gates[4 * position + 2] = unit.product();
}
