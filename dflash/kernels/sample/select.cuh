// The likeliest tokens of a row without sorting it, by one block.
//
// A token's place is a number: the order of its logit, likelier first, above its id; so places are unique, and what top-k and
// top-p keep are the places before some `end`. To find it, places are weighed in bins, and the bin where the sum reaches what
// is wanted is split again until few are left. Weights are integers, so nothing depends on who comes first.
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

struct Room {
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

// What a place weighs: 1, or exp(scaled) in units of 2^-44, so that a vocabulary does not overflow.
struct One {
    static constexpr bool COUNTS = true;
    __device__ u64 operator()(u64) const { return 1; }
};
struct Weight {
    float highest, scale;
    static constexpr bool COUNTS = false;
    __device__ u64 operator()(u64 place) const {
        return __float2ull_rn(expf(scaled(value_at(place), highest, scale)) * UNIT);
    }
};

// Bins of even steps of the logit, from the largest down to `reach` below it; the last bin has all the rest.
struct Steps {
    float highest, in_a_unit;
    __device__ Steps(float highest, float reach) : highest(highest), in_a_unit(LAST / reach) {}
    __device__ int bin_of(u64 place) const {
        return min((int)__fmul_rn(__fsub_rn(highest, value_at(place)), in_a_unit), LAST);
    }
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
__device__ __forceinline__ u64 scan_of_block(u64 value, Room& room) {
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
        if (lane == 31) room.of_warps[warp] = sum;
        __syncthreads();
        sum = room.of_warps[lane];
    }
    const u64 before = __shfl_sync(~0u, sum, (warp + 31) % 32);
    return value + (warp ? before : 0);
}

// What all threads know of the sum of their values.
__device__ __forceinline__ u64 sum_of_block(u64 value, Room& room) {
    __syncthreads();
    value = scan_of_block(value, room);
    if (threadIdx.x == THREADS - 1) room.before = value;
    __syncthreads();
    value = room.before;
    __syncthreads();
    return value;
}

// The mass of a whole row, from the sums of its chunks, each relative to the largest of the chunk.
__device__ __forceinline__ u64 total_of(const float* sums, const float* largest, int n, float highest, float scale,
                                        Room& room) {
    u64 sum = 0;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        sum += __double2ull_rn((double)sums[3 * i] * (double)expf(scaled(largest[3 * i], highest, scale)) * UNIT);
    }
    return sum_of_block(sum, room);
}

__device__ __forceinline__ float last_value(u64 end) {
    return end == NOWHERE ? __int_as_float(0xff800000) : value_at(end - 1);
}

template <class Places, class Mass>
__device__ __forceinline__ u64 mass_before(const Places& places, u64 end, const Mass& mass, Room& room) {
    u64 sum = 0;
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place < end) sum += mass(place);
    });
    return sum_of_block(sum, room);
}

// Weigh the places of [room.low, room.high) in bins: room.bin is where the mass, with what lies before, reaches `wanted`.
template <class Places, class Mass, class Bins>
__device__ __forceinline__ void weigh(const Places& places, const Mass& mass, const Bins& bins, u64 wanted, Room& room) {
    const u64 low = room.low, high = room.high, before = room.before;
    const int own = threadIdx.x;
    room.counts[own] = 0, room.lows[own] = 0, room.highs[own] = 0;
    __syncthreads();
    if (own == 0) room.reached = false;
    places.each([&](u64 place) {
        if (place < low || place >= high) return;
        const int bin = bins.bin_of(place);
        atomicAdd(room.counts + bin, 1);
        if (Mass::COUNTS) return;
        const u64 weight = mass(place);
        const u32 part = (u32)weight, was = atomicAdd(room.lows + bin, part);
        const u32 rest = (u32)(weight >> 32) + (was + part < was);
        if (rest) atomicAdd(room.highs + bin, rest);
    });
    __syncthreads();
    const u64 inside = Mass::COUNTS ? room.counts[own] : (u64)room.highs[own] << 32 | room.lows[own];
    const u64 sum = before + scan_of_block(inside, room);
    if (sum >= wanted && sum - inside < wanted) {
        room.reached = true, room.bin = own;
        room.before = sum - inside, room.n_inside = room.counts[own];
    }
    __syncthreads();
}

// Narrow [room.low, room.high) to one of its parts.
template <class Places, class Mass>
__device__ __forceinline__ void narrow(const Places& places, const Mass& mass, u64 wanted, Room& room) {
    const Parts parts(room.low, room.high);
    weigh(places, mass, parts, wanted, room);
    if (threadIdx.x == 0) room.low = parts.first(room.bin), room.high = min(parts.high, parts.first(room.bin + 1));
    __syncthreads();
}

// Narrow [room.low, room.high) to what the places of room.bin take.
template <class Places>
__device__ __forceinline__ void narrow_to_bin(const Places& places, const Steps& steps, Room& room) {
    const u64 high = room.high;
    const int bin = room.bin;
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
    if (threadIdx.x == 0) room.low = NOWHERE, room.high = 0;
    __syncthreads();
    if (threadIdx.x % 32 == 0 && first != NOWHERE) atomicMin(&room.low, first), atomicMax(&room.high, last + 1);
    __syncthreads();
}

// Where to end among [room.low, room.high) so that the mass, with what lies before, is `wanted` or just above.
template <class Mass>
__device__ __forceinline__ u64 finish(const List& places, const Mass& mass, u64 wanted, Room& room) {
    while (room.n_inside > FEW && room.reached) narrow(places, mass, wanted, room);
    const u64 low = room.low, stop = room.high, before = room.before;
    places.each([&](u64 place) {
        if (place < low || place >= stop) return;
        const int to = atomicAdd(&room.n_few, 1);
        if (to < FEW) room.few[to] = place;
    });
    __syncthreads();
    if (threadIdx.x < 32) {
        const u64 place = threadIdx.x < room.n_few ? room.few[threadIdx.x] : NOWHERE;
        const u64 own = place == NOWHERE ? 0 : mass(place);
        u64 sum = before;
        for (int i = 0; i < 32; ++i) {
            const u64 other = __shfl_sync(~0u, place, i), its = __shfl_sync(~0u, own, i);
            if (other <= place) sum += its;
        }
        u64 last = place != NOWHERE && sum >= wanted ? place : NOWHERE - 1;
#pragma unroll
        for (int i = 16; i; i /= 2) last = min(last, __shfl_xor_sync(~0u, last, i));
        if (threadIdx.x == 0) room.high = last + 1;
    }
    __syncthreads();
    return room.high;
}

// Where to end among the places before `high` so that their mass is `wanted` or just above; `high` if it never is, and
// then room.reached is false. With `near`, what lies further down than `steps` go counts as never.
template <class Places, class Mass>
__device__ __forceinline__ u64 end_of(const Places& places, const Steps& steps, u64 high, const Mass& mass, u64 wanted,
                                      bool near, Room& room) {
    __syncthreads();
    if (threadIdx.x == 0) room.low = 0, room.high = high, room.before = 0, room.n_few = 0, room.n_listed = 0;
    __syncthreads();
    weigh(near ? places.down_to(steps.least(LAST - 1)) : places, mass, steps, wanted, room);
    const int bin = room.bin;
    if (!room.reached || (near && bin == LAST)) {
        __syncthreads();
        if (threadIdx.x == 0) room.reached = false;
        __syncthreads();
        return high;
    }
    if constexpr (Places::MANY) {
        if (room.n_inside > LISTED) narrow_to_bin(places, steps, room);
        while (room.n_inside > LISTED) narrow(places, mass, wanted, room);
        const u64 low = room.low, stop = room.high;
        places.down_to(steps.least(bin)).each([&](u64 place) {
            if (place >= low && place < stop && steps.bin_of(place) == bin) room.list[atomicAdd(&room.n_listed, 1)] = place;
        });
        __syncthreads();
        const List list{room.list, room.n_listed};
        if (low == 0) narrow_to_bin(list, steps, room);
        return finish(list, mass, wanted, room);
    } else {
        narrow_to_bin(places, steps, room);
        return finish(places, mass, wanted, room);
    }
}

// List the `n` likeliest tokens and perhaps some more, in any order: how many, or -1 if the list is too short for them.
// Tokens of bins beyond `furthest` are left out. room.bin: the furthest bin that is listed, wholly.
__device__ __forceinline__ int list_likeliest(const float* logits, const u32* tops, const Steps& steps, int furthest, int n,
                                              Room& room) {
    __syncthreads();
    if (threadIdx.x == 0) {
        room.low = 0, room.high = NOWHERE, room.before = 0, room.n_groups = room.n_listed = 0;
        room.reached = false;
    }
    __syncthreads();
    if (GROUPS > n) weigh(Groups{tops}, One(), steps, n, room);
    const int bin = room.reached ? min(room.bin, furthest) : furthest;
    __syncthreads();
    if (threadIdx.x == 0) room.bin = bin;
    for (int i = threadIdx.x; i < GROUPS; i += THREADS) {
        const u64 place = (u64)~tops[i] << 32;
        if (tops[i] && steps.bin_of(place) <= bin) room.groups[atomicAdd(&room.n_groups, 1)] = i;
    }
    __syncthreads();
    const float least = steps.least(bin);
    const int lane = threadIdx.x % 32;
    for (int first = threadIdx.x / 32; first < room.n_groups; first += GROUPS_AHEAD * WARPS) {
        float x[GROUPS_AHEAD * 4];
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD * 4; ++i) {
            const int at = first + i / 4 * WARPS, token = at < room.n_groups ? room.groups[at] * GROUP + i % 4 * 32 + lane : VOCAB;
            x[i] = token < VOCAB ? logits[token] : __int_as_float(0xff800000);
        }
#pragma unroll
        for (int i = 0; i < GROUPS_AHEAD * 4; ++i) {
            if (!(x[i] >= least)) continue;
            const u64 place = place_of(x[i], 0);
            if (place == NOWHERE || steps.bin_of(place) > bin) continue;
            const int to = atomicAdd(&room.n_listed, 1);
            const u32 token = room.groups[first + i / 4 * WARPS] * GROUP + i % 4 * 32 + lane;
            if (to < LISTED) room.list[to] = place | token;
        }
    }
    __syncthreads();
    return room.n_listed <= LISTED ? room.n_listed : -1;
}
