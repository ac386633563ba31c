// Epilogue of the decode multiply: products are stored, added or gated. RMS norms are fused: the factor of a norm before the
// multiply (INPUT_NORM) is applied here; a norm after it (OUTPUT_NORM) is prepared here.
//
//   STORE     out = scale * product
//   ADD       out += scale * product
//   GATED     out = half(silu(gate) * up * INNER_SCALE), where gate and up are products; GELU in place of SiLU with macro GELU
//   GATED_BY  the same with `gates`, stored before, in place of the gate
//
// An RMS norm is linear except for one factor a token. With OUTPUT_NORM, a multiply that adds to the residual stream also
// writes half(value * gain * NORM_SCALE), saturated, and the sum of squares of every 16 values. The multiply with INPUT_NORM
// takes these float16 values as its tokens. It computes the factor from the sums of squares and multiplies its products with
// it. The sums and their order depend on the width only.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/flags_in_data.cuh"
#include "../gpu/include/signals.cuh"
#include "../gpu/include/early_read.cuh"
#include "../gpu/include/warp.cuh"

#define STORE 0
#define ADD 1
#define GATED 2
#define GATED_BY 3
#define INPUT_NORM 1
#define OUTPUT_NORM 2

// Arguments of the epilogue. `scales`: factor of each token's products, in shared memory. `captured`: if not null, the
// updated residual stream is also stored here (a captured hidden state).
struct Epilogue {
    float scale;
    const float *gates, *gain;
    u16* halves;
    float *squares, *scales, *captured;
    const PeerTable* peers;  // of a tensor split: where results go, in place of `halves` and `squares`
};

// Compute the factors of a norm of `width` values, times `scale`, for tokens `first`, `first + step` and so on; by one warp.
// Not inlined, so that the code after it has all registers. With POLL the sums of squares are read while they are written, by
// the launch before or, if PEER_DATA, by any GPU.
template <bool POLL = false>
__device__ __noinline__ void compute_norm_scales(Epilogue to, int width, float eps, int n_tokens, int first, int step,
                                                 int lane) {
    constexpr int IN_FLIGHT = 10;  // sums of squares that a lane loads at a time
    const int tiles = (width + 15) / 16;
    for (int token = first; token < n_tokens; token += step) {
        const float* from = to.squares + (size_t)token * tiles;
        float sum = 0.0f;
        for (int begin = 0; begin < tiles; begin += 32 * IN_FLIGHT) {
            const int at = begin + lane;
            float squares[IN_FLIGHT];
            const auto load = [&] {
                bool written = true;
                UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
                    const bool exists = at + 32 * i < tiles;
                    u32 bits = 0;
#if PEER_DATA
                    if (exists) bits = load_system(from + at + 32 * i);
                    squares[i] = __uint_as_float(bits);
#else
                    if (POLL && exists) bits = load_published(from + at + 32 * i);
                    squares[i] = POLL ? __uint_as_float(bits) : exists ? from[at + 32 * i] : 0.0f;
#endif
                    written &= bits != EMPTY;
                }
                return written;
            };
#if PEER_DATA
            poll_peers(load);
#else
            if (POLL) {
                poll(load);
            } else {
                load();
            }
#endif
            UNROLL for (int i = 0; i < IN_FLIGHT; ++i) sum = __fadd_rn(sum, squares[i]);
        }
        sum = warp_sum(sum);
        const float factor = __frsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)width), eps));
        if (lane == 0) to.scales[token] = __fmul_rn(__fmul_rn(factor, 1.0f / NORM_SCALE), to.scale);
    }
}

// Outputs that a warp holds at a time: 16 rows from `row` on and eight tokens from `token` on. Lane 4 * g + t holds rows g
// (x, y) and g + 8 (z, w) of tokens 2 * t and 2 * t + 1.
struct OutputTile {
    float* out;
    int rows, stride, row, token, n_tokens;
};

// Values that the epilogue reads. They are loaded early to hide the latency.
template <int OUTPUT, int NORM_MODE>
struct EpilogueInputs {
    float previous[4], gain[2];

    __device__ __forceinline__ void load(const Epilogue& to, const OutputTile& at, int lane) {
        if constexpr (OUTPUT == ADD || OUTPUT == GATED_BY) {
            const float* from = OUTPUT == ADD ? at.out : to.gates;
            const int stride = OUTPUT == ADD ? at.stride : at.rows;
            UNROLL for (int e = 0; e < 4; ++e) {
                const int r = at.row + lane / 4 + e / 2 * 8, t = at.token + lane % 4 * 2 + e % 2;
                previous[e] = r < at.rows && t < at.n_tokens ? from[(size_t)t * stride + r] : 0.0f;
                if (NORM_MODE == OUTPUT_NORM && e % 2 == 0) gain[e / 2] = r < at.rows ? to.gain[r] : 0.0f;
            }
        }
    }
};

// Write a tile. `v`: sums of the products; `up`: those of the up projection if GATED.
template <int OUTPUT, int NORM_MODE>
__device__ __forceinline__ void write(const Epilogue& to, const OutputTile& tile,
                                      const EpilogueInputs<OUTPUT, NORM_MODE>& loaded, int lane, float4 v, float4 up) {
    const float values[4] = {v.x, v.y, v.z, v.w}, ups[4] = {up.x, up.y, up.z, up.w};
    float squares[2] = {0.0f, 0.0f};
    UNROLL for (int e = 0; e < 4; ++e) {
        const int r = tile.row + lane / 4 + e / 2 * 8, t = tile.token + lane % 4 * 2 + e % 2;
        if (r >= tile.rows || t >= tile.n_tokens) continue;
        const float scale = NORM_MODE == INPUT_NORM ? to.scales[t] : to.scale;
        const size_t at = (size_t)t * tile.stride + r;
        const float value = __fmul_rn(values[e], scale);
        if constexpr (OUTPUT >= GATED) {
            const float gate = OUTPUT == GATED ? value : loaded.previous[e];
            const float inner = __fmul_rn(ACTIVATE(silu_approx)(gate), OUTPUT == GATED ? __fmul_rn(ups[e], scale) : value);
            const u16 rounded = half_saturated(__fmul_rn(inner, INNER_SCALE));
            ((u16*)tile.out)[at] = rounded;
#if PEERS
            UNROLL for (int d = 0; d < PEERS; ++d) {
                if (d != RANK) store_to_peer((u16*)to.peers->outs[d] + (t * to.peers->stride + r), rounded);
            }
#endif
        } else {
            const float result = OUTPUT == ADD ? __fadd_rn(loaded.previous[e], value) : value;
            tile.out[at] = result;
            if (OUTPUT == ADD && to.captured) to.captured[at] = result;
            if constexpr (NORM_MODE == OUTPUT_NORM) {
                const float half = __fmul_rn(__fmul_rn(result, loaded.gain[e / 2]), NORM_SCALE);
#if PEERS
                const u16 rounded = half_saturated(half);
                UNROLL for (int d = 0; d < PEERS; ++d)
                    store_to_peer((u16*)to.peers->outs[d] + (t * to.peers->stride + r), rounded);
#else
                to.halves[(size_t)t * tile.rows + r] = half_saturated(half);
#endif
                squares[e % 2] = __fmaf_rn(result, result, squares[e % 2]);
            }
        }
    }
    if constexpr (NORM_MODE == OUTPUT_NORM) {
        UNROLL for (int i = 4; i < 32; i *= 2) {
            UNROLL for (int e = 0; e < 2; ++e) squares[e] = __fadd_rn(squares[e], __shfl_xor_sync(~0u, squares[e], i));
        }
        UNROLL for (int e = 0; e < 2; ++e) {
            const int t = tile.token + lane % 4 * 2 + e;
            if (lane < 4 && tile.row < tile.rows && t < tile.n_tokens) {
#if PEERS
                UNROLL for (int d = 0; d < PEERS; ++d) {
                    store_to_peer((float*)to.peers->outs_2[d] + (t * to.peers->stride_2 + tile.row / 16), squares[e]);
                }
#else
                to.squares[(size_t)t * ((tile.rows + 15) / 16) + tile.row / 16] = squares[e];
#endif
            }
        }
    }
}
