// Top-k routing of one token by a warp: the N_USED experts with the largest values, of equal values the lower number first.
//
//   ROUTING 0  values are logits; share = softmax over the chosen logits
//   ROUTING 1  the same, share * table[expert]
//   ROUTING 2  values are sigmoid(logit) + table[expert]; share = sigmoid / sum of the chosen sigmoids * scale
//
// Macros: EXPERTS, experts of a layer; N_USED and N_SHARED, see slots.cuh; ROUTING, 0 unless defined; SHARED_ROUTER, 0 if a shared
// expert has a share of 1 in place of the sigmoid of its logit, 1 unless defined.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/early_read.cuh"
#include "slots.cuh"

#ifndef ROUTING
#define ROUTING 0
#endif
#ifndef SHARED_ROUTER
#define SHARED_ROUTER 1
#endif
constexpr int PER_LANE = (EXPERTS + 31) / 32;
static_assert(N_USED >= 1 && N_USED <= 32 && N_USED <= EXPERTS && EXPERTS <= 512,
              "a warp chooses at most 32 of at most 512 experts");

// Unsigned integer in the order of the floats; both zeros are equal. 0 is below all of them.
__device__ __forceinline__ u32 ordered(float x) {
    const u32 bits = __float_as_uint(__fadd_rn(x, 0.0f));
    return max(bits & 0x80000000u ? ~bits : bits | 0x80000000u, 1u);
}

__device__ __forceinline__ float from_ordered(u32 key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Largest of keys BEGIN .. END - 1 and its index; of equal keys the first.
template <int BEGIN, int END>
__device__ __forceinline__ void largest_key(const u32 (&keys)[PER_LANE], u32& key, int& at) {
    if constexpr (END - BEGIN == 1) {
        key = keys[BEGIN], at = BEGIN;
    } else {
        u32 other;
        int other_at;
        largest_key<BEGIN, (BEGIN + END) / 2>(keys, key, at);
        largest_key<(BEGIN + END) / 2, END>(keys, other, other_at);
        if (other > key) key = other, at = other_at;
    }
}

// Read a lane's logits as keys; true if no logit is EMPTY.
__device__ __forceinline__ bool load_keys(const float* logits, int lane, u32 (&keys)[PER_LANE]) {
    u32 bits[PER_LANE];
    bool written = true;
    UNROLL for (int i = 0; i < PER_LANE; ++i)
        bits[i] = lane + 32 * i < EXPERTS ? load_published(logits + lane + 32 * i) : 0;
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        written &= bits[i] != EMPTY;
        keys[i] = lane + 32 * i < EXPERTS ? ordered(__uint_as_float(bits[i])) : 0;
    }
    return written;
}

// Lane i <= `last` receives expert number i and its logit; other lanes receive -1 and 0. `max_logit`: that of number 0.
__device__ __forceinline__ void choose_first(u32 (&keys)[PER_LANE], int lane, int last, int& expert, float& logit,
                                             float& max_logit) {
    expert = -1;
    logit = max_logit = 0.0f;
#pragma unroll 1
    for (int slot = 0; slot <= last; ++slot) {
        u32 best;
        int at;
        largest_key<0, PER_LANE>(keys, best, at);
        const u32 largest = __reduce_max_sync(~0u, best);
        const u32 first = __reduce_min_sync(~0u, best == largest ? lane + 32 * at : ~0u);
        UNROLL for (int i = 0; i < PER_LANE; ++i) {
            if (first == lane + 32 * i) keys[i] = 0;
        }
        const float chosen = from_ordered(largest);
        if (slot == 0) max_logit = chosen;
        if (lane == slot) expert = (int)first, logit = chosen;
    }
}

// Value of a lane over the sum of the first N_USED lanes.
__device__ __forceinline__ float part_of_sum(float value) {
    float total = 0.0f;
    UNROLL for (int slot = 0; slot < N_USED; ++slot) total = __fadd_rn(total, __shfl_sync(~0u, value, slot));
    return __fdiv_rn(value, total);
}

// Share of 1 of each chosen expert; 0 in the other lanes.
__device__ __forceinline__ float share_of(float logit, float max_logit, int lane) {
    return part_of_sum(lane < N_USED ? expf(__fsub_rn(logit, max_logit)) : 0.0f);
}

// Lane i < N_USED receives expert number i and its share; other lanes receive -1 and 0. `table` and `scale`: see ROUTING.
__device__ __forceinline__ void choose_topk(const float* logits, int lane, const float* table, float scale, int& expert,
                                            float& share) {
    u32 keys[PER_LANE];
    float logit, max_logit;
    load_keys(logits, lane, keys);
#if ROUTING == 2
    UNROLL for (int i = 0; i < PER_LANE; ++i) {
        const int e = lane + 32 * i;
        if (e < EXPERTS) keys[i] = ordered(__fadd_rn(sigmoid_rn(from_ordered(keys[i])), table[e]));
    }
#endif
    choose_first(keys, lane, N_USED - 1, expert, logit, max_logit);
#if ROUTING == 2
    share = __fmul_rn(part_of_sum(lane < N_USED ? sigmoid_rn(__ldcg(logits + expert)) : 0.0f), scale);
#else
    share = share_of(logit, max_logit, lane);
    if (ROUTING == 1 && lane < N_USED) share = __fmul_rn(share, table[expert]);
#endif
}

// Store the experts of a token and the factors of their products: the shares, then the gate of the shared expert, whose
// logit is read only if there is one.
__device__ __forceinline__ void write_choice(int expert, float share, const float* shared_logit, int lane, int* experts,
                                             float* factors) {
    if (lane < N_USED) {
        publish(experts + lane, (u32)expert);
        publish(factors + lane, __float_as_uint(__fdiv_rn(share, INNER_SCALE)));
    }
    if (N_SHARED && lane == 0) {
        const float logit = SHARED_ROUTER ? __ldcg(shared_logit) : __int_as_float(0x7f800000);
        const float factor = __fdiv_rn(1.0f / (1.0f + expf(-logit)), INNER_SCALE);
        publish(factors + N_USED, __float_as_uint(factor));
    }
}
