// Convolution, SiLU and normalisation of one row of a head by a warp, in registers, with the operations of conv_row.cuh.
//
// Macros: TAPS of the conv; those of shape.cuh.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/warp.cuh"
#include "apply_accepted.cuh"
#include "shape.cuh"

static_assert(KEY_DIM % 32 == 0 && VALUE_DIM % 32 == 0, "each lane has as many channels");
constexpr int KEYS_PER_LANE = KEY_DIM / 32, CHANNELS_PER_LANE = 2 * KEYS_PER_LANE + VALUE_DIM / 32;

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
        float qq = 0.0f, kk = 0.0f, qk = 0.0f;
        UNROLL for (int i = 0; i < KEYS_PER_LANE; ++i) {
            const float q = x[i], k = x[KEYS_PER_LANE + i];
            qq = __fmaf_rn(q, q, qq), kk = __fmaf_rn(k, k, kk), qk = __fmaf_rn(q, k, qk);
        }
        qq = warp_sum(qq), kk = warp_sum(kk), qk = warp_sum(qk);
        const float of_q = __fmul_rn(rsqrtf((float)KEY_DIM), rsqrtf(qq + 1e-6f)), of_k = rsqrtf(kk + 1e-6f);
        UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
            of[i] = i < KEYS_PER_LANE       ? __fmul_rn(x[i], of_q)
                    : i < 2 * KEYS_PER_LANE ? __fmul_rn(x[i], of_k)
                                            : x[i];
        }
        product = __fmul_rn(__fmul_rn(qk, of_q), of_k);
    }
};
