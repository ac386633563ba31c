// Selection of the most probable tokens of a row without sorting it, by one block (radix select).
//
// The sort key of a token is an integer: the inverted rank of its logit above its id. Keys are unique and ascend with
// falling logits. So top-k and top-p select the keys before some `end`. To find `end`, the weights of keys are summed in
// bins; the bin in which the sum reaches the target is split again until few keys are left. Weights are integers, so no
// result depends on the order of the threads.
//
// Called by all threads of a block of 1024. Shared memory: `Scratch`. Barriers separate a write of one of its fields from
// the reads of other threads, and the last read from the next write. Macros: VOCAB, THREADS.
#pragma once
#include "rows.cuh"

constexpr int BINS = THREADS, LAST_BIN = BINS - 1;
constexpr int FINAL_KEYS = 32;                   // keys that one warp sums directly
constexpr int SHORT_LIST = 512;                  // keys of a list for which each thread sums all others directly
constexpr int LIST_CAPACITY = 2048;              // keys of a list in shared memory
#ifdef FEW_REGISTERS  // see gpu/spills.py
constexpr int ROW_UNROLL = 1;  // loads in flight: vectors of a row
#else
constexpr int ROW_UNROLL = 2;
#endif
constexpr int GROUP_UNROLL = 4;  // loads in flight: groups
constexpr u64 NO_KEY = ~0ull;
constexpr float UNIT = 17592186044416.0f;  // 2^44
static_assert(THREADS == 1024, "a thread has a bin");
static_assert(VOCAB < 1 << 19, "weights of a row must fit 64 bits, and groups 16");

// Sort key of a token; NO_KEY for NaN and minus infinity.
__device__ __forceinline__ u64 sort_key(float x, u32 token) {
    const u32 rank = rank_of(x);
    return rank ? (u64)~rank << 32 | token : NO_KEY;
}
__device__ __forceinline__ float logit_at(u64 key) { return logit_of_rank(~(u32)(key >> 32)); }

struct Scratch {
    u64 list[LIST_CAPACITY], weights[SHORT_LIST], final_keys[FINAL_KEYS], warp_sums[WARPS];
    u32 counts[BINS], lows[BINS], highs[BINS];
    u64 low, high, before;
    int bin, n_inside, n_final, n_listed, n_groups;
    unsigned short groups[GROUPS];
    bool reached;
};

// Sources of keys, which `each` passes to `visit`. RowKeys: the tokens of a row that `mask` allows, with logits of at least
// `least`. KeyList: a list. GroupKeys: the largest logit of each group, with the group in place of the token. IS_ROW: too many keys for a list.
struct RowKeys {
    const float* logits;
    const u32* mask;
    float least;
    static constexpr bool IS_ROW = true;
    __device__ RowKeys(const float* logits, const u32* mask, float least = __int_as_float(0xff800000))
        : logits(logits), mask(mask), least(least) {}
    __device__ RowKeys at_least(float value) const { return RowKeys(logits, mask, value); }
    template <class Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        constexpr int STEP = VOCAB % 4 ? 1 : 4;
        for (int start = 0; start < VOCAB; start += STEP * ROW_UNROLL * THREADS) {
            float x[ROW_UNROLL][STEP];
            UNROLL for (int i = 0; i < ROW_UNROLL; ++i) {
                const int token = start + STEP * (i * THREADS + threadIdx.x);
                if (token >= VOCAB) continue;
                if (STEP == 4) {
                    const float4 v = *(const float4*)(logits + token);
                    x[i][0] = v.x, x[i][STEP / 2 - STEP / 4] = v.y, x[i][STEP / 2] = v.z, x[i][STEP - 1] = v.w;
                } else {
                    x[i][0] = logits[token];
                }
            }
            UNROLL for (int i = 0; i < ROW_UNROLL; ++i) {
                const int token = start + STEP * (i * THREADS + threadIdx.x);
                if (token >= VOCAB) continue;
                UNROLL for (int j = 0; j < STEP; ++j) {
                    if (x[i][j] >= least && allows(mask, token + j)) visit(sort_key(x[i][j], token + j));
                }
            }
        }
    }
};
struct KeyList {
    const u64* keys;
    int n;
    static constexpr bool IS_ROW = false;
    __device__ KeyList at_least(float) const { return *this; }
    template <class Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        for (int i = threadIdx.x; i < n; i += THREADS) visit(keys[i]);
    }
};
struct GroupKeys {
    const u32* group_ranks;
    static constexpr bool IS_ROW = false;
    template <class Visit>
    __device__ __forceinline__ void each(const Visit& visit) const {
        for (int i = threadIdx.x; i < GROUPS; i += THREADS)
            visit(group_ranks[i] ? (u64)~group_ranks[i] << 32 | (u32)i : NO_KEY);
    }
};

// Weight of a key: 1, or exp(scaled logit) in units of 2^-44, so that the sum over a vocabulary does not overflow.
struct UnitWeight {
    static constexpr bool IS_UNIT = true;
    __device__ u64 operator()(u64) const { return 1; }
};
struct ExpWeight {
    float highest, scale;
    static constexpr bool IS_UNIT = false;
    __device__ u64 operator()(u64 key) const { return __float2ull_rn(expf(scaled(logit_at(key), highest, scale)) * UNIT); }
};

// Bins of equal width in the logit, from the largest logit down to `reach` below it. The last bin holds all lower logits.
struct LogitBins {
    float highest, bins_per_unit;
    __device__ LogitBins(float highest, float reach) : highest(highest), bins_per_unit(LAST_BIN / reach) {}
    __device__ int bin_of(u64 key) const {
        return min((int)__fmul_rn(__fsub_rn(highest, logit_at(key)), bins_per_unit), LAST_BIN);
    }
    // A logit slightly below all of a bin, so that rounding excludes none of them.
    __device__ float least(int bin) const {
        return bin == LAST_BIN ? __int_as_float(0xff800000)
                               : __fmaf_rn(-1e-5f, fabsf(highest), highest - (bin + 1.5f) / bins_per_unit);
    }
};

// Bins of equal width in the key, for keys low .. high - 1.
struct KeyBins {
    u64 low, high;
    int shift;
    __device__ KeyBins(u64 low, u64 high) : low(low), high(high), shift(max(0, 54 - __clzll((long long)(high - low - 1)))) {}
    __device__ int bin_of(u64 key) const { return (int)(key - low >> shift); }
    __device__ u64 first_key(int bin) const { return (u64)bin << shift < high - low ? low + ((u64)bin << shift) : high; }
};

// Inclusive prefix sum over the threads. The caller must put a barrier between two calls.
__device__ __forceinline__ u64 block_scan(u64 value, Scratch& scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = value;
    for (int round = 0; round < 2; ++round) {
        UNROLL for (int i = 1; i < 32; i *= 2) {
            const u64 other = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += other;
        }
        if (round == 1) break;
        value = sum;
        if (lane == 31) scratch.warp_sums[warp] = sum;
        __syncthreads();
        sum = scratch.warp_sums[lane];
    }
    const u64 before = __shfl_sync(~0u, sum, (warp + 31) % 32);
    return value + (warp ? before : 0);
}

// Sum over the block, the same in all threads.
__device__ __forceinline__ u64 block_sum(u64 value, Scratch& scratch) {
    __syncthreads();
    value = block_scan(value, scratch);
    if (threadIdx.x == THREADS - 1) scratch.before = value;
    __syncthreads();
    value = scratch.before;
    __syncthreads();
    return value;
}

// Weight of a whole row, from the sums of its chunks, each relative to the largest logit of the chunk.
__device__ __forceinline__ u64 total_weight(const float* sums, const float* largest, int n, float highest, float scale,
                                            Scratch& scratch) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        sum += __double2ull_rn((double)sums[3 * i] * (double)expf(scaled(largest[3 * i], highest, scale)) * UNIT);
    }
    return block_sum(sum, scratch);
}

// Logit of the last key before `end`.
__device__ __forceinline__ float last_logit(u64 end) {
    return end == NO_KEY ? __int_as_float(0xff800000) : logit_at(end - 1);
}

template <class Keys, class WeightFn>
__device__ __forceinline__ u64 weight_before(const Keys& keys, u64 end, const WeightFn& weight_of, Scratch& scratch) {
    u64 sum = 0;
    keys.at_least(last_logit(end)).each([&](u64 key) {
        if (key < end) sum += weight_of(key);
    });
    return block_sum(sum, scratch);
}

// Sum the weights of the keys scratch.low .. scratch.high - 1 in bins. scratch.bin becomes the bin in which the sum,
// including scratch.before (the weight of lower keys), reaches `target`; scratch.before becomes the weight before that bin.
template <class Keys, class WeightFn, class Bins>
__device__ __forceinline__ void histogram(const Keys& keys, const WeightFn& weight_of, const Bins& bins, u64 target,
                                          Scratch& scratch) {
    const u64 low = scratch.low, high = scratch.high, before = scratch.before;
    const int own = threadIdx.x;
    scratch.counts[own] = 0, scratch.lows[own] = 0, scratch.highs[own] = 0;
    __syncthreads();
    if (own == 0) scratch.reached = false;
    keys.each([&](u64 key) {
        if (key < low || key >= high) return;
        const int bin = bins.bin_of(key);
        atomicAdd(scratch.counts + bin, 1);
        if (WeightFn::IS_UNIT) return;
        const u64 weight = weight_of(key);
        const u32 part = (u32)weight, was = atomicAdd(scratch.lows + bin, part);
        const u32 rest = (u32)(weight >> 32) + (was + part < was);
        if (rest) atomicAdd(scratch.highs + bin, rest);
    });
    __syncthreads();
    const u64 inside = WeightFn::IS_UNIT ? scratch.counts[own] : (u64)scratch.highs[own] << 32 | scratch.lows[own];
    const u64 sum = before + block_scan(inside, scratch);
    if (sum >= target && sum - inside < target) {
        scratch.reached = true, scratch.bin = own;
        scratch.before = sum - inside, scratch.n_inside = scratch.counts[own];
    }
    __syncthreads();
}

// Narrow scratch.low .. scratch.high to the key bin that reaches `target`.
template <class Keys, class WeightFn>
__device__ __forceinline__ void narrow(const Keys& keys, const WeightFn& weight_of, u64 target, Scratch& scratch) {
    const KeyBins key_bins(scratch.low, scratch.high);
    histogram(keys, weight_of, key_bins, target, scratch);
    if (threadIdx.x == 0)
        scratch.low = key_bins.first_key(scratch.bin),
        scratch.high = min(key_bins.high, key_bins.first_key(scratch.bin + 1));
    __syncthreads();
}

// Narrow scratch.low .. scratch.high to the range of the keys in logit bin scratch.bin.
template <class Keys>
__device__ __forceinline__ void narrow_to_bin(const Keys& keys, const LogitBins& logit_bins, Scratch& scratch) {
    const u64 high = scratch.high;
    const int bin = scratch.bin;
    u64 first_key = NO_KEY, last = 0;
    keys.each([&](u64 key) {
        if (key < high && logit_bins.bin_of(key) == bin) first_key = min(first_key, key), last = max(last, key);
    });
    UNROLL for (int i = 16; i; i /= 2) {
        first_key = min(first_key, __shfl_xor_sync(~0u, first_key, i));
        last = max(last, __shfl_xor_sync(~0u, last, i));
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.low = NO_KEY, scratch.high = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0 && first_key != NO_KEY) atomicMin(&scratch.low, first_key), atomicMax(&scratch.high, last + 1);
    __syncthreads();
}

// The end among scratch.low .. scratch.high for which the weight, including scratch.before, first reaches `target`.
template <class WeightFn>
__device__ __forceinline__ u64 finish(const KeyList& keys, const WeightFn& weight_of, u64 target, Scratch& scratch) {
    while (scratch.n_inside > FINAL_KEYS && scratch.reached) narrow(keys, weight_of, target, scratch);
    const u64 low = scratch.low, stop = scratch.high, before = scratch.before;
    keys.each([&](u64 key) {
        if (key < low || key >= stop) return;
        const int to = atomicAdd(&scratch.n_final, 1);
        if (to < FINAL_KEYS) scratch.final_keys[to] = key;
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        const u64 key = threadIdx.x < scratch.n_final ? scratch.final_keys[threadIdx.x] : NO_KEY;
        const u64 own = key == NO_KEY ? 0 : weight_of(key);
        u64 sum = before;
        for (int i = 0; i < 32; ++i) {
            const u64 other = __shfl_sync(~0u, key, i), its = __shfl_sync(~0u, own, i);
            if (other <= key) sum += its;
        }
        u64 last = key != NO_KEY && sum >= target ? key : NO_KEY - 1;
        UNROLL for (int i = 16; i; i /= 2) last = min(last, __shfl_xor_sync(~0u, last, i));
        if (threadIdx.x == 0) scratch.high = last + 1;
    }
    __syncthreads();
    return scratch.high;
}

// The end among the keys before `high` for which their weight first reaches `target`. If the weight stays below `target`,
// returns `high` and scratch.reached is false. With `ignore_tail`, keys in the last logit bin do not count.
template <class Keys, class WeightFn>
__device__ __forceinline__ u64 find_end(const Keys& keys, const LogitBins& logit_bins, u64 high, const WeightFn& weight_of,
                                        u64 target, bool ignore_tail, Scratch& scratch) {
    __syncthreads();
    if (threadIdx.x == 0)
        scratch.low = 0, scratch.high = high, scratch.before = 0, scratch.n_final = 0, scratch.n_listed = 0;
    __syncthreads();
    histogram(ignore_tail ? keys.at_least(logit_bins.least(LAST_BIN - 1)) : keys, weight_of, logit_bins, target, scratch);
    const int bin = scratch.bin;
    if (!scratch.reached || (ignore_tail && bin == LAST_BIN)) {
        __syncthreads();
        if (threadIdx.x == 0) scratch.reached = false;
        __syncthreads();
        return high;
    }
    if constexpr (Keys::IS_ROW) {
        if (scratch.n_inside > LIST_CAPACITY) narrow_to_bin(keys, logit_bins, scratch);
        while (scratch.n_inside > LIST_CAPACITY) narrow(keys, weight_of, target, scratch);
        const u64 low = scratch.low, stop = scratch.high;
        keys.at_least(logit_bins.least(bin)).each([&](u64 key) {
            if (key >= low && key < stop && logit_bins.bin_of(key) == bin)
                scratch.list[atomicAdd(&scratch.n_listed, 1)] = key;
        });
        __syncthreads();
        const KeyList list{scratch.list, scratch.n_listed};
        if (low == 0) narrow_to_bin(list, logit_bins, scratch);
        return finish(list, weight_of, target, scratch);
    } else {
        narrow_to_bin(keys, logit_bins, scratch);
        return finish(keys, weight_of, target, scratch);
    }
}

// List at least the `n` most probable tokens that `mask` allows, in any order, in scratch.list. Returns the number of listed
// tokens, or -1 if the list is too short. Tokens of bins after `furthest` are left out. scratch.bin becomes the last bin,
// all of whose allowed tokens are listed.
__device__ __forceinline__ int list_top_tokens(const float* logits, const u32* mask, const u32* group_ranks,
                                               const LogitBins& logit_bins, int furthest, int n, Scratch& scratch) {
    __syncthreads();
    if (threadIdx.x == 0) {
        scratch.low = 0, scratch.high = NO_KEY, scratch.before = 0, scratch.n_groups = scratch.n_listed = 0;
        scratch.reached = false;
    }
    __syncthreads();
    if (GROUPS > n) histogram(GroupKeys{group_ranks}, UnitWeight(), logit_bins, n, scratch);
    const int bin = scratch.reached ? min(scratch.bin, furthest) : furthest;
    __syncthreads();
    if (threadIdx.x == 0) scratch.bin = bin;
    for (int i = threadIdx.x; i < GROUPS; i += THREADS) {
        const u64 key = (u64)~group_ranks[i] << 32;
        if (group_ranks[i] && logit_bins.bin_of(key) <= bin) scratch.groups[atomicAdd(&scratch.n_groups, 1)] = i;
    }
    __syncthreads();
    const float least = logit_bins.least(bin);
    const int lane = threadIdx.x % 32;
    for (int first_group = threadIdx.x / 32; first_group < scratch.n_groups; first_group += GROUP_UNROLL * WARPS) {
        float x[GROUP_UNROLL * 4];
        UNROLL for (int i = 0; i < GROUP_UNROLL * 4; ++i) {
            const int at = first_group + i / 4 * WARPS,
                      token = at < scratch.n_groups ? scratch.groups[at] * GROUP + i % 4 * 32 + lane : VOCAB;
            x[i] = token < VOCAB ? logits[token] : __int_as_float(0xff800000);
        }
        UNROLL for (int i = 0; i < GROUP_UNROLL * 4; ++i) {
            if (!(x[i] >= least)) continue;
            const u64 key = sort_key(x[i], 0);
            if (key == NO_KEY || logit_bins.bin_of(key) > bin) continue;
            const u32 token = scratch.groups[first_group + i / 4 * WARPS] * GROUP + i % 4 * 32 + lane;
            if (!allows(mask, token)) continue;
            const int to = atomicAdd(&scratch.n_listed, 1);
            if (to < LIST_CAPACITY) scratch.list[to] = key | token;
        }
    }
    __syncthreads();
    return scratch.n_listed <= LIST_CAPACITY ? scratch.n_listed : -1;
}
