// Selection of the likeliest tokens of a row without sorting it, by one block (radix select).
//
// The place of a token is an integer: the inverted order of its logit above its id. So places are unique and ascend with falling
// logits, and top-k and top-p keep the places before some `end`. To find `end`, the weights of places are summed in bins; the bin in
// which the sum reaches the target is split again until few places are left. Weights are integers, so no result depends on the order
// of the threads.
#pragma once
#include "rows.cuh"

constexpr int BINS = THREADS, LAST = BINS - 1, FEW = 32, SHORT = 512, LISTED = 2048, AHEAD = 2, GROUPS_AHEAD = 4;
constexpr u64 NOWHERE = ~0ull;
constexpr float UNIT = 17592186044416.0f;  // 2^44
static_assert(THREADS == 1024, "a thread has a bin");
static_assert(VOCAB < 1 << 19, "masses of a row fit 64 bits, and groups 16");

__device__ __forceinline__ u64 place_of(float x, u32 token) {
    const u32 rank = rank_of(x);
    return rank ? (u64)~rank << 32 | token : NOWHERE;
}
__device__ __forceinline__ float value_at(u64 place) { return value_of(~(u32)(place >> 32)); }

struct Scratch {
    u64 list[LISTED], masses[SHORT], few[FEW], of_warps[WARPS];
    u32 counts[BINS], lows[BINS], highs[BINS];
    u64 low, high, before;
    int bin, n_inside, n_few, n_listed, n_groups;
    unsigned short groups[GROUPS];
    bool reached;
};

// Places to look at, which `each` hands on: those of a row with logits from `least` on, those of a list, or of the largest
// of each group.
struct Row {
    const float* logits;
    float least;
    static constexpr bool MANY = true;
    __device__ explicit Row(const float* logits, float least = __int_as_float(0xff800000)) : logits(logits), least(least) {}
    __device__ Row down_to(float value) const { return Row(logits, value); }
    template <class Take>
    __device__ __forceinline__ void each(const Take& take) const {
        constexpr int STEP = VOCAB % 4 ? 1 : 4;
        for (int start = 0; start < VOCAB; start += STEP * AHEAD * THREADS) {
            float x[AHEAD][STEP];
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int token = start + STEP * (i * THREADS + threadIdx.x);
                if (token >= VOCAB) continue;
                if (STEP == 4) {
                    const float4 v = *(const float4*)(logits + token);
                    x[i][0] = v.x, x[i][STEP / 2 - STEP / 4] = v.y, x[i][STEP / 2] = v.z, x[i][STEP - 1] = v.w;
                } else {
                    x[i][0] = logits[token];
                }
            }
#pragma unroll
            for (int i = 0; i < AHEAD; ++i) {
                const int token = start + STEP * (i * THREADS + threadIdx.x);
                if (token >= VOCAB) continue;
#pragma unroll
                for (int j = 0; j < STEP; ++j) {
                    if (x[i][j] >= least) take(place_of(x[i][j], token + j));
                }
            }
        }
    }
};
struct List {
    const u64* places;
    int n;
    static constexpr bool MANY = false;
    __device__ List down_to(float) const { return *this; }
    template <class Take>
    __device__ __forceinline__ void each(const Take& take) const {
        for (int i = threadIdx.x; i < n; i += THREADS) take(places[i]);
    }
};
struct Groups {
    const u32* tops;
    static constexpr bool MANY = false;
    template <class Take>
    __device__ __forceinline__ void each(const Take& take) const {
        for (int i = threadIdx.x; i < GROUPS; i += THREADS) take(tops[i] ? (u64)~tops[i] << 32 | (u32)i : NOWHERE);
    }
};

// Weight of a place: 1, or exp(scaled) in units of 2^-44, so that the sum over a vocabulary does not overflow.
struct One {
    static constexpr bool COUNTS = true;
    __device__ u64 operator()(u64) const { return 1; }
};
struct Weight {
    float highest, scale;
    static constexpr bool COUNTS = false;
    __device__ u64 operator()(u64 place) const { return __float2ull_rn(expf(scaled(value_at(place), highest, scale)) * UNIT); }
};

// Bins of even steps of the logit, from the largest down to `reach` below it; the last bin has all the rest.
struct Steps {
    float highest, in_a_unit;
    __device__ Steps(float highest, float reach) : highest(highest), in_a_unit(LAST / reach) {}
    __device__ int bin_of(u64 place) const { return min((int)__fmul_rn(__fsub_rn(highest, value_at(place)), in_a_unit), LAST); }
    // A little below what such a bin takes.
    __device__ float least(int bin) const {
        return bin == LAST ? __int_as_float(0xff800000) : highest - (bin + 1.5f) / in_a_unit - 1e-5f * fabsf(highest);
    }
};

// Bins of even numbers of places.
struct Parts {
    u64 low, high;
    int shift;
    __device__ Parts(u64 low, u64 high) : low(low), high(high), shift(max(0, 54 - __clzll((long long)(high - low - 1)))) {}
    __device__ int bin_of(u64 place) const { return (int)(place - low >> shift); }
    __device__ u64 first(int bin) const { return (u64)bin << shift < high - low ? low + ((u64)bin << shift) : high; }
};

// The sum of a thread's value and of those of all threads before it; the caller keeps calls apart.
__device__ __forceinline__ u64 scan_of_block(u64 value, Scratch& scratch) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = value;
    for (int round = 0; round < 2; ++round) {
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const u64 other = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum += other;
        }
        if (round == 1) break;
        value = sum;
        if (lane == 31) scratch.of_warps[warp] = sum;
        __syncthreads();
        sum = scratch.of_warps[lane];
    }
    const u64 before = __shfl_sync(~0u, sum, (warp + 31) % 32);
    return value + (warp ? before : 0);
}

// The sum of the values of all threads, in all threads.
__device__ __forceinline__ u64 sum_of_block(u64 value, Scratch& scratch) {
    __syncthreads();
    value = scan_of_block(value, scratch);
    if (threadIdx.x == THREADS - 1) scratch.before = value;
    __syncthreads();
    value = scratch.before;
    __syncthreads();
    return value;
}

// The mass of a whole row, from the sums of its chunks, each relative to the largest of the chunk.
__device__ __forceinline__ u64 total_of(const float* sums, const float* largest, int n, float highest, float scale,
                                        Scratch& scratch) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        sum += __double2ull_rn((double)sums[3 * i] * (double)expf(scaled(largest[3 * i], highest, scale)) * UNIT);
    }
    return sum_of_block(sum, scratch);
}

__device__ __forceinline__ float last_value(u64 end) { return end == NOWHERE ? __int_as_float(0xff800000) : value_at(end - 1); }

template <class Places, class Mass>
__device__ __forceinline__ u64 mass_before(const Places& places, u64 end, const Mass& mass, Scratch& scratch) {
    u64 sum = 0;
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place < end) sum += mass(place);
    });
    return sum_of_block(sum, scratch);
}

// Weigh the places of [scratch.low, scratch.high) in bins: scratch.bin is where the mass, with what lies before, reaches `wanted`.
template <class Places, class Mass, class Bins>
__device__ __forceinline__ void weigh(const Places& places, const Mass& mass, const Bins& bins, u64 wanted, Scratch& scratch) {
    const u64 low = scratch.low, high = scratch.high, before = scratch.before;
    const int own = threadIdx.x;
    scratch.counts[own] = 0, scratch.lows[own] = 0, scratch.highs[own] = 0;
    __syncthreads();
    if (own == 0) scratch.reached = false;
    places.each([&](u64 place) {
        if (place < low || place >= high) return;
        const int bin = bins.bin_of(place);
        atomicAdd(scratch.counts + bin, 1);
        if (Mass::COUNTS) return;
        const u64 weight = mass(place);
        const u32 part = (u32)weight, was = atomicAdd(scratch.lows + bin, part);
        const u32 rest = (u32)(weight >> 32) + (was + part < was);
        if (rest) atomicAdd(scratch.highs + bin, rest);
    });
    __syncthreads();
    const u64 inside = Mass::COUNTS ? scratch.counts[own] : (u64)scratch.highs[own] << 32 | scratch.lows[own];
    const u64 sum = before + scan_of_block(inside, scratch);
    if (sum >= wanted && sum - inside < wanted) {
        scratch.reached = true, scratch.bin = own;
        scratch.before = sum - inside, scratch.n_inside = scratch.counts[own];
    }
    __syncthreads();
}

// Narrow [scratch.low, scratch.high) to one of its parts.
template <class Places, class Mass>
__device__ __forceinline__ void narrow(const Places& places, const Mass& mass, u64 wanted, Scratch& scratch) {
    const Parts parts(scratch.low, scratch.high);
    weigh(places, mass, parts, wanted, scratch);
    if (threadIdx.x == 0) scratch.low = parts.first(scratch.bin), scratch.high = min(parts.high, parts.first(scratch.bin + 1));
    __syncthreads();
}

// Narrow [scratch.low, scratch.high) to what the places of scratch.bin take.
template <class Places>
__device__ __forceinline__ void narrow_to_bin(const Places& places, const Steps& steps, Scratch& scratch) {
    const u64 high = scratch.high;
    const int bin = scratch.bin;
    u64 first = NOWHERE, last = 0;
    places.each([&](u64 place) {
        if (place < high && steps.bin_of(place) == bin) first = min(first, place), last = max(last, place);
    });
#pragma unroll
    for (int i = 16; i; i /= 2) {
        first = min(first, __shfl_xor_sync(~0u, first, i));
        last = max(last, __shfl_xor_sync(~0u, last, i));
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.low = NOWHERE, scratch.high = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0 && first != NOWHERE) atomicMin(&scratch.low, first), atomicMax(&scratch.high, last + 1);
    __syncthreads();
}

// Where to end among [scratch.low, scratch.high) so that the mass, with what lies before, is `wanted` or just above.
template <class Mass>
__device__ __forceinline__ u64 finish(const List& places, const Mass& mass, u64 wanted, Scratch& scratch) {
    while (scratch.n_inside > FEW && scratch.reached) narrow(places, mass, wanted, scratch);
    const u64 low = scratch.low, stop = scratch.high, before = scratch.before;
    places.each([&](u64 place) {
        if (place < low || place >= stop) return;
        const int to = atomicAdd(&scratch.n_few, 1);
        if (to < FEW) scratch.few[to] = place;
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        const u64 place = threadIdx.x < scratch.n_few ? scratch.few[threadIdx.x] : NOWHERE;
        const u64 own = place == NOWHERE ? 0 : mass(place);
        u64 sum = before;
        for (int i = 0; i < 32; ++i) {
            const u64 other = __shfl_sync(~0u, place, i), its = __shfl_sync(~0u, own, i);
            if (other <= place) sum += its;
        }
        u64 last = place != NOWHERE && sum >= wanted ? place : NOWHERE - 1;
#pragma unroll
        for (int i = 16; i; i /= 2) last = min(last, __shfl_xor_sync(~0u, last, i));
        if (threadIdx.x == 0) scratch.high = last + 1;
    }
    __syncthreads();
    return scratch.high;
}

// Where to end among the places before `high` so that their mass is `wanted` or just above; `high` if it never is, and
// then scratch.reached is false. With `near`, what lies further down than `steps` go counts as never.
template <class Places, class Mass>
__device__ __forceinline__ u64 end_of(const Places& places, const Steps& steps, u64 high, const Mass& mass, u64 wanted,
                                      bool near, Scratch& scratch) {
    __syncthreads();
    if (threadIdx.x == 0) scratch.low = 0, scratch.high = high, scratch.before = 0, scratch.n_few = 0, scratch.n_listed = 0;
    __syncthreads();
    weigh(near ? places.down_to(steps.least(LAST - 1)) : places, mass, steps, wanted, scratch);
    const int bin = scratch.bin;
    if (!scratch.reached || (near && bin == LAST)) {
        __syncthreads();
        if (threadIdx.x == 0) scratch.reached = false;
        __syncthreads();
        return high;
    }
    if constexpr (Places::MANY) {
        if (scratch.n_inside > LISTED) narrow_to_bin(places, steps, scratch);
        while (scratch.n_inside > LISTED) narrow(places, mass, wanted, scratch);
        const u64 low = scratch.low, stop = scratch.high;
        places.down_to(steps.least(bin)).each([&](u64 place) {
            if (place >= low && place < stop && steps.bin_of(place) == bin)
                scratch.list[atomicAdd(&scratch.n_listed, 1)] = place;
        });
        __syncthreads();
        const List list{scratch.list, scratch.n_listed};
        if (low == 0) narrow_to_bin(list, steps, scratch);
        return finish(list, mass, wanted, scratch);
    } else {
        narrow_to_bin(places, steps, scratch);
        return finish(places, mass, wanted, scratch);
    }
}

// List the `n` likeliest tokens and perhaps some more, in any order: how many, or -1 if the list is too short for them.
// Tokens of bins beyond `furthest` are left out. scratch.bin: the furthest bin that is listed, wholly.
__device__ __forceinline__ int list_likeliest(const float* logits, const u32* tops, const Steps& steps, int furthest, int n,
                                              Scratch& scratch) {
    __syncthreads();
    if (threadIdx.x == 0) {
        scratch.low = 0, scratch.high = NOWHERE, scratch.before = 0, scratch.n_groups = scratch.n_listed = 0;
        scratch.reached = false;
    }
    __syncthreads();
    if (GROUPS > n) weigh(Groups{tops}, One(), steps, n, scratch);
    const int bin = scratch.reached ? min(scratch.bin, furthest) : furthest;
    __syncthreads();
    if (threadIdx.x == 0) scratch.bin = bin;
    for (int i = threadIdx.x; i < GROUPS; i += THREADS) {
        const u64 place = (u64)~tops[i] << 32;
        if (tops[i] && steps.bin_of(place) <= bin) scratch.groups[atomicAdd(&scratch.n_groups, 1)] = i;
    }
    __syncthreads();
    const float least = steps.least(bin);
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x / 32; first < scratch.n_groups; first += GROUPS_AHEAD * WARPS) {
        float x[GROUPS_AHEAD * 4];
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD * 4; ++i) {
            const int at = first + i / 4 * WARPS,
                      token = at < scratch.n_groups ? scratch.groups[at] * GROUP + i % 4 * 32 + lane : VOCAB;
            x[i] = token < VOCAB ? logits[token] : __int_as_float(0xff800000);
        }
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD * 4; ++i) {
            if (!(x[i] >= least)) continue;
            const u64 place = place_of(x[i], 0);
            if (place == NOWHERE || steps.bin_of(place) > bin) continue;
            const int to = atomicAdd(&scratch.n_listed, 1);
            const u32 token = scratch.groups[first + i / 4 * WARPS] * GROUP + i % 4 * 32 + lane;
            if (to < LISTED) scratch.list[to] = place | token;
        }
    }
    __syncthreads();
    return scratch.n_listed <= LISTED ? scratch.n_listed : -1;
}
