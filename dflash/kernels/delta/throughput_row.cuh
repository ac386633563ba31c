// Convolution, SiLU and normalisation of one row of a head by a warp, in registers, with the operations of conv_row.cuh.
//
// Macros: TAPS of the conv; those of shape.cuh.
#pragma once
#include "../gpu/include/activation.cuh"
#include "apply_accepted.cuh"
#include "shape.cuh"
#include "unit_keys.cuh"

static_assert(KEY_DIM % 32 == 0 && VALUE_DIM % 32 == 0, "each lane has as many channels");
constexpr int CHANNELS_PER_LANE = 2 * KEYS_PER_LANE + VALUE_DIM / 32;

// Channels of a head that a lane handles: first those of q, then of k, then of v.
struct HeadChannels {
    int q, v;  // the first ones

    __device__ __forceinline__ HeadChannels(int head, int lane)
        : q(key_head(head) * KEY_DIM + lane), v(2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + lane) {}
    __device__ __forceinline__ int at(int i) const {
        if (i < KEYS_PER_LANE) return q + 32 * i;
        if (i < 2 * KEYS_PER_LANE) return q + KEY_HEADS * KEY_DIM + 32 * (i - KEYS_PER_LANE);
        return v + 32 * (i - 2 * KEYS_PER_LANE);
    }
};

// A row before the conv, with the rows above it, the oldest first.
struct RowInputs {
    float of[TAPS][CHANNELS_PER_LANE];

    // `row`: inputs of the row itself; `pending`: those of the slot's pending rows; `tail`: the conv state of the slot.
    __device__ __forceinline__ void load(const float* row, const float* pending, const float* tail, const AcceptedRows& ids,
                                         int n_accepted, const HeadChannels& channels) {
        UNROLL for (int t = 0; t < TAPS; ++t) {
            const int at = n_accepted - (TAPS - 1 - t), id = ids.at(max(at, 0) & 63);
            const float* const from = t == TAPS - 1 ? row
                                      : at >= 0     ? pending + (size_t)id * CHANNELS
                                                    : tail + (TAPS - 1 + at) * CHANNELS;
            UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) of[t][i] = from[channels.at(i)];
        }
    }
};

// A row after the conv: q of unit length times KEY_DIM^-0.5, k of unit length, v; and q . k.
struct ConvolvedRow {
    float of[CHANNELS_PER_LANE], product;

    __device__ __forceinline__ void make(const RowInputs& inputs, const float* taps, const HeadChannels& channels) {
        float x[CHANNELS_PER_LANE]{};
        UNROLL for (int t = 0; t < TAPS; ++t)
            UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i)
                x[i] = __fmaf_rn(taps[t * CHANNELS + channels.at(i)], inputs.of[t][i], x[i]);
        UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) x[i] = silu_fast(x[i]);
        const UnitKeys unit(x, x + KEYS_PER_LANE);
        UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
            of[i] = i < KEYS_PER_LANE       ? __fmul_rn(x[i], unit.of_q)
                    : i < 2 * KEYS_PER_LANE ? __fmul_rn(x[i], unit.of_k)
                                            : x[i];
        }
        product = unit.product();
    }
};
