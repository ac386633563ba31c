// The convolution of a pass in front of the delta rule: in place, so rows are taken from the last one up.
#pragma once

constexpr int TOGETHER = 8, FEWER = 4;  // rows of a thread at a time

// The conv of one channel over N rows up from `last`, in place. The inputs also go to `remembered` unless that is null.
template <bool CHAIN, int N>
__device__ __forceinline__ void convolve(const float (&weight)[TAPS], float* column, int last, const Tree& tree,
                                         float* remembered) {
    float total[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
        const int row = last - r;
        const float input = column[row * LOCAL];
        total[r] = 0.0f;
        const u64 above = CHAIN ? 0 : *(const u64*)tree.above[row];
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            const int up = CHAIN ? row - (TAPS - 1 - t) : (signed char)(above >> 8 * (TAPS - 2 - t));
            total[r] = __fmaf_rn(weight[t], column[up * LOCAL], total[r]);
        }
        total[r] = __fmaf_rn(weight[TAPS - 1], input, total[r]);
        if (remembered) remembered[row * CHANNELS] = input;
    }
#pragma unroll
    for (int r = 0; r < N; ++r) column[(last - r) * LOCAL] = silu(total[r]);
}

// All n rows: from the last one up, so that all inputs are still there.
template <bool CHAIN>
__device__ __forceinline__ void convolve_rows(const float* taps, float* column, int n, const Tree& tree, float* remembered) {
    float weight[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) weight[t] = taps[t * LOCAL];
    int last = n - 1;
#pragma unroll 1
    for (; last >= TOGETHER - 1; last -= TOGETHER) convolve<CHAIN, TOGETHER>(weight, column, last, tree, remembered);
    if (last >= FEWER - 1) convolve<CHAIN, FEWER>(weight, column, last, tree, remembered), last -= FEWER;
#pragma unroll 1
    for (; last >= 0; --last) convolve<CHAIN, 1>(weight, column, last, tree, remembered);
}

// A single row: all channels of a thread at once. `place_of` tells where the input of a channel goes.
template <class Place>
__device__ __forceinline__ void convolve_row(const Shared& shared, const Place& place_of) {
    constexpr int ROUNDS = (LOCAL + THREADS - 1) / THREADS;
    float total[ROUNDS], input[ROUNDS];
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int x = threadIdx.x + i * THREADS;
        total[i] = 0.0f;
#pragma unroll
        for (int t = 0; t < TAPS; ++t) {
            input[i] = x < LOCAL ? shared.rows[(t - TAPS + 1) * LOCAL + x] : 0.0f;
            total[i] = __fmaf_rn(x < LOCAL ? shared.taps[t * LOCAL + x] : 0.0f, input[i], total[i]);
        }
    }
#pragma unroll
    for (int i = 0; i < ROUNDS; ++i) {
        const int x = threadIdx.x + i * THREADS;
        if (x >= LOCAL) continue;
        if (float* const place = place_of(x)) *place = input[i];
        shared.rows[x] = silu(total[i]);
    }
}
