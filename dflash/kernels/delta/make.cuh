// What a warp makes of the input of a row: conv, SiLU, unit q times WIDTH^-0.5, unit k.
#pragma once

constexpr int KEYS = (WIDTH + 31) / 32, OF_VALUES = (OWN + 31) / 32, EACH = 2 * KEYS + OF_VALUES;

// A lane's channels of a block, KEYS of q, as many of k, OF_VALUES of the values: the i-th, if it is there.
struct Channels {
    int lane;

    __device__ __forceinline__ int within(int i) const { return (i < 2 * KEYS ? i % KEYS : i - 2 * KEYS) * 32 + lane; }
    __device__ __forceinline__ bool there(int i) const {
        return i < 2 * KEYS ? WIDTH % 32 == 0 || within(i) < WIDTH : OWN % 32 == 0 || within(i) < OWN;
    }
    __device__ __forceinline__ int at(int i) const {
        return (i < KEYS ? 0 : i < 2 * KEYS ? WIDTH : 2 * WIDTH) + within(i);
    }
};

// The taps of a lane's channels.
struct Taps {
    float of[TAPS][EACH];

    __device__ __forceinline__ void load(const float* taps, const Channels& channels) {
#pragma unroll
        for (int t = 0; t < TAPS; ++t)
#pragma unroll
            for (int i = 0; i < EACH; ++i) of[t][i] = channels.there(i) ? taps[t * LOCAL + channels.at(i)] : 0.0f;
    }
};

// Where a row's inputs and its key are kept in memory: the first channel of the block, or null.
struct Remembered {
    float *q, *k, *values, *key;
};

// Make `row`, which is visited as number `position`. `above` are the rows above it, a byte each, the nearest first; `keys`
// and `values` where the inputs of row 0 lie in memory: of q, before those of k, and of the values.
__device__ __forceinline__ void make_row(const Taps& taps, const Shared& shared, const float* keys, const float* values,
                                         int row, u64 above, int position, const Remembered& remembered,
                                         const Channels& channels) {
    float x[EACH]{}, input[EACH];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        const int from = t < TAPS - 1 ? (signed char)(above >> 8 * (TAPS - 2 - t)) : row;
        const bool near = STAGED || from < 0;
        const float* const q = near ? shared.inputs + from * LOCAL : keys + from * CHANNELS;
        const float* const k = q + (near ? WIDTH : GROUPS * WIDTH);
        const float* const v = near ? q + 2 * WIDTH : values + from * CHANNELS;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            input[i] = channels.there(i) ? (i < KEYS ? q : i < 2 * KEYS ? k : v)[channels.within(i)] : 0.0f;
            x[i] = __fmaf_rn(taps.of[t][i], input[i], x[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        float* const to = i < KEYS ? remembered.q : i < 2 * KEYS ? remembered.k : remembered.values;
        if (to && channels.there(i)) to[channels.within(i)] = input[i];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) x[i] = silu_fast(x[i]);
    float qq = 0.0f, kk = 0.0f, qk = 0.0f;
#pragma unroll
    for (int i = 0; i < KEYS; ++i) {
        const float q = x[i], k = x[KEYS + i];
        qq = __fmaf_rn(q, q, qq), kk = __fmaf_rn(k, k, kk), qk = __fmaf_rn(q, k, qk);
    }
    qq = warp_sum(qq), kk = warp_sum(kk), qk = warp_sum(qk);
    const float of_q = __fmul_rn(rsqrtf((float)WIDTH), rsqrtf(qq + 1e-6f)), of_k = rsqrtf(kk + 1e-6f);
    float* const line = shared.rows + position * LOCAL;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (!channels.there(i)) continue;
        const float made = i < KEYS ? __fmul_rn(x[i], of_q) : i < 2 * KEYS ? __fmul_rn(x[i], of_k) : x[i];
        line[channels.at(i)] = made;
        if (i >= KEYS && i < 2 * KEYS && remembered.key) remembered.key[channels.within(i)] = made;
    }
    if (channels.lane == 0) shared.laws[4 * position + 2] = __fmul_rn(__fmul_rn(qk, of_q), of_k);
}
