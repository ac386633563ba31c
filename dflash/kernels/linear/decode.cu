// out = x @ W.T for up to 64 tokens: weights of several types stream through shared memory once, tensor cores multiply.
//
// K is cut into KS * CLUSTER slices. A warp takes one slice of a unit, MT tiles of 16 rows of one weight, and has a ring of
// tiles on their way that no other warp waits for. A block has UNITS units and KS slices of each; the warps of a slice share
// its tokens, which one warp more for each slice brings, COLUMNS columns at a time, and sums up. At last a block adds up its
// slices in order, with CLUSTER > 1 (Hopper) those of the other blocks of its cluster, too. Which slices there are does not
// depend on the tokens, and nothing else orders a sum, so a token has the same bits in any company.
//
// Grid: CLUSTER blocks for each UNITS * MT * 16 rows, of one weight after the other (gated: half of the units are the second
// weight's); block 32 * KS * (UNITS + 1); shared SHARED bytes.
// Macros: QUANTS, the formats, separated by commas; TOKENS, 8 to 64; MODE and NORM, see results.cuh; KS; CLUSTER; UNITS; MT; COLUMNS, a multiple of
// 256; AHEAD, how many parts of the tokens there is room for; SHARED, which weights fill as far as it goes;
// WARPS_AT_MOST of a block and BLOCKS of a processor, for which registers are given out.
// Bytes: those of the tiles, once; of the tokens a slice of K a block.
#include "../launch.cuh"
#include "results.cuh"
#include "ring.cuh"
#include "tile.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(NORM) || !defined(KS) || !defined(CLUSTER)
#error "QUANTS, TOKENS, MODE, NORM, KS and CLUSTER must be defined"
#endif
#if !defined(UNITS) || !defined(MT) || !defined(COLUMNS) || !defined(AHEAD) || !defined(SHARED)
#error "UNITS, MT, COLUMNS, AHEAD and SHARED must be defined"
#endif
#if !defined(WARPS_AT_MOST) || !defined(BLOCKS)
#error "WARPS_AT_MOST and BLOCKS must be defined"
#endif

constexpr int NT = TOKENS / 8, CUT = 256, MOST_STAGES = 8, FRAGMENTS = MT * NT;
constexpr int WARPS = UNITS * KS, OWN = MODE == GATED ? UNITS / 2 : UNITS;
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && COLUMNS % CUT == 0 && AHEAD >= 2, "see above");
static_assert(WARPS + KS <= WARPS_AT_MOST, "a block has more warps than registers were given out for");
static_assert(MODE != GATED || UNITS % 2 == 0, "gate and up have as many units");

// How the shared memory of a block is divided for one format.
template <class Q>
struct Plan {
    static constexpr int TILES = COLUMNS / Q::TILE_K, STRIDE = token_stride<Q>(2 * COLUMNS);
    static constexpr int X_BYTES = TOKENS * STRIDE, SUM_BYTES = TOKENS * 4 * Q::MINIMA, PART = X_BYTES + TILES * SUM_BYTES;
    static constexpr int FIT = (SHARED - KS * AHEAD * PART) / (WARPS * MT * Q::BYTES);
    static constexpr int STAGES = FIT < MOST_STAGES ? FIT : MOST_STAGES;
    static_assert(SHARED > KS * AHEAD * PART && FIT >= 1, "no room for weights");
    static_assert(SHARED >= WARPS * FRAGMENTS * 512, "no room for sums");
};

struct Work {
    const u8 *tiles, *second;
    float* out;
    int rows, stride, type, group;

    __device__ int units() const { return ((rows + 15) / 16 + MT - 1) / MT; }
    __device__ int groups() const { return (units() + OWN - 1) / OWN; }
};

struct Inputs {
    const u16* x;
    int n_tokens, width;
    float eps;
    const u64* ahead;
    int n_ahead;
};

struct Barriers {
    u64 weights[WARPS][MOST_STAGES], filled[KS][AHEAD], freed[KS][AHEAD];
};

// Where K is cut, in columns.
__device__ __forceinline__ int cut(const Inputs& in, int slice) {
    return (in.width + CUT - 1) / CUT * slice / (KS * CLUSTER) * CUT;
}

// A warp copies columns `first`.. of the tokens; what lies past the width is zero.
template <class Q>
__device__ __forceinline__ void fetch_tokens(u32 to, const Inputs& in, int first, int lane) {
    const u16* from = in.x + first + 8 * lane;
    const int inside = in.width - first - 8 * lane;
    to += 16 * lane;
#pragma unroll 2
    for (int token = 0; token < in.n_tokens; ++token) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 256) copy_16_or_zeros(to + 2 * i, from + (i < inside ? i : 0), i < inside);
        from += in.width, to += Plan<Q>::STRIDE;
    }
}

// What the warp of a slice's tokens does: part after part, as room gets free; some are on their way meanwhile.
template <class Q>
__device__ __forceinline__ void bring_tokens(const Inputs& in, int begin, int parts, u8* shared, u64 (&fills)[AHEAD],
                                             u64 (&frees)[AHEAD], int lane) {
    using P = Plan<Q>;
    const TokenRows<Q, NT> rows(P::STRIDE, in.n_tokens, lane);
    const auto fetch = [&](int part) {
        if (part < parts) {
            if (part >= AHEAD) barrier_wait(shared_address(&frees[part % AHEAD]), part / AHEAD + 1 & 1);
            fetch_tokens<Q>(shared_address(shared + part % AHEAD * P::PART), in, begin + part * COLUMNS, lane);
        }
        copy_commit();
    };
#pragma unroll
    for (int part = 0; part < AHEAD - 1; ++part) fetch(part);
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
        u8* x = shared + part % AHEAD * P::PART;
        copy_wait<AHEAD - 2>();
        __syncwarp();
        if constexpr (Q::MINIMA > 0) {
#pragma unroll 1
            for (int i = 0; i < P::TILES; ++i) {
                sum_groups<Q, NT>(x + i * 2 * Q::TILE_K, rows, lane, x + P::X_BYTES + i * P::SUM_BYTES);
            }
            __syncwarp();
        }
        if (lane == 0) barrier_arrive(shared_address(&fills[part % AHEAD]));
        fetch(part + AHEAD - 1);
    }
}

// Ask for what later launches read first, some of it by each warp that brings tokens: memory is idle while a launch ends.
__device__ __forceinline__ void fetch_ahead(const u64* pieces, int n, int part_of_k, int lane) {
    for (int i = (blockIdx.x * KS + part_of_k) * 32 + lane; i < n; i += gridDim.x * KS * 32) {
        prefetch(pieces[2 * i], (u32)pieces[2 * i + 1]);
    }
}

template <class Q>
__device__ __forceinline__ void multiply_slice(const Work& work, const Inputs& in, const Results& to, u8* shared,
                                               Barriers& barriers, float (&total)[MT][NT][4]) {
    using P = Plan<Q>;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const bool brings = warp >= WARPS;
    const int part_of_k = brings ? warp - WARPS : warp / UNITS, unit = warp % UNITS;
    const int slice = blockIdx.x % CLUSTER * KS + part_of_k, first = cut(in, slice), past = cut(in, slice + 1);
    const int tiles_of_row = (in.width + Q::TILE_K - 1) / Q::TILE_K, row_tiles = (work.rows + 15) / 16;
    const int parts = (past - first + COLUMNS - 1) / COLUMNS;
    u8* tokens = shared + part_of_k * (AHEAD * P::PART);
    u64(&fills)[AHEAD] = barriers.filled[part_of_k], (&frees)[AHEAD] = barriers.freed[part_of_k];
    if (brings) {
        if (lane < AHEAD) {
            barrier_init(shared_address(&fills[lane]), 1);
            barrier_init(shared_address(&frees[lane]), UNITS);
        }
        __syncthreads();
        wait_for_inputs();
        bring_tokens<Q>(in, first, parts, tokens, fills, frees, lane);
        fetch_ahead(in.ahead, in.n_ahead, part_of_k, lane);
        return;
    }

    int i = first / Q::TILE_K;
    const int end = min(past / Q::TILE_K, tiles_of_row);
    const int n_active = min(OWN, work.units() - work.group * OWN), own = unit % OWN;
    const int stages = n_active == OWN ? P::STAGES : min(MOST_STAGES, P::STAGES * OWN / n_active);
    const bool active = own < n_active;
    const int place = part_of_k * (UNITS / OWN * n_active) + unit / OWN * n_active + own;
    u8* ring = shared + KS * AHEAD * P::PART + place * (stages * MT * Q::BYTES);
    const u32 barrier = shared_address(&barriers.weights[warp][0]);
    const u8* tiles = MODE == GATED && unit >= OWN ? work.second : work.tiles;
    const u8* source[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
        source[m] = tiles + (size_t)min((work.group * OWN + own) * MT + m, row_tiles - 1) * tiles_of_row * Q::BYTES;
    }
    const auto fetch = [&](int stage, int tile) {
        ring_copy<MT, Q::BYTES>(shared_address(ring) + stage * (MT * Q::BYTES), source, (size_t)tile * Q::BYTES,
                                barrier + 8 * stage, lane);
    };
    if (lane < MOST_STAGES) barrier_init(barrier + 8 * lane);
    __syncwarp();
    for (int s = 0; active && s < stages && i + s < end; ++s) fetch(s, i + s);
    __syncthreads();
    if constexpr (NORM == BEFORE) {
        wait_for_inputs();
        find_scales(to, in.width, in.eps, in.n_tokens, warp, WARPS, lane);
    }

    const TokenRows<Q, NT> rows(P::STRIDE, in.n_tokens, lane);
    int stage = 0, parity = 0, buffer = 0, filled = 0;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
        const u8* x = tokens + buffer * P::PART;
        const u8* sums = x + P::X_BYTES;
        // Both are the same; which one spares a register depends on the format.
        const int most = P::TILES == 1 && Q::GROUP > 16 ? i + (i < end) : min(i + P::TILES, end);
        const int stop = active ? most : i;
        barrier_wait(shared_address(&fills[buffer]), filled);
#pragma unroll 1
        for (; i < stop; ++i) {
            const u8* tile[MT];
#pragma unroll
            for (int m = 0; m < MT; ++m) tile[m] = ring + (stage * MT + m) * Q::BYTES;
            barrier_wait(barrier + 8 * stage, parity);
            multiply_tile<Q, MT, NT>(tile, x, rows, sums, lane, total);
            __syncwarp();
            if (i + stages < end) fetch(stage, i + stages);
            if (++stage == stages) stage = 0, parity ^= 1;
            x += 2 * Q::TILE_K, sums += P::SUM_BYTES;
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&frees[buffer]));
        if (++buffer == AHEAD) buffer = 0, filled ^= 1;
    }
    if constexpr (NORM != BEFORE) wait_for_inputs();
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Work& work, const Inputs& in, const Results& to, u8* shared,
                                             Barriers& barriers, float (&total)[MT][NT][4]) {
    if constexpr (sizeof...(Others) == 0) {
        multiply_slice<Q>(work, in, to, shared, barriers, total);
    } else if (type == 0) {
        multiply_slice<Q>(work, in, to, shared, barriers, total);
    } else {
        multiply_any<Others...>(type - 1, work, in, to, shared, barriers, total);
    }
}

__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// The sum of the slices of a fragment of a unit; `sums` holds those of this block's.
__device__ __forceinline__ float4 sum_slices(const u8* sums, int unit, int f, int lane) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < KS * CLUSTER; ++s) {
        const u8* from = sums + (((s % KS * UNITS + unit) * FRAGMENTS + f) * 32 + lane) * 16;
        add(sum, CLUSTER > 1 ? load_of_block(shared_address(from), s / KS) : *(const float4*)from);
    }
    return sum;
}

__device__ __forceinline__ void sync_all() {
    if (CLUSTER > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

// All slices go to shared memory, and the warps of the blocks take fragments in turn.
__device__ __forceinline__ void reduce(const Work& work, const float (&total)[MT][NT][4], u8* shared, const Inputs& in,
                                       const Results& to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER;
    __syncthreads();
    if (warp < WARPS) {
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
            const float* v = total[f / NT][f % NT];
            ((float4*)shared)[(warp * FRAGMENTS + f) * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
    sync_all();
#pragma unroll 1
    for (int i = rank + CLUSTER * warp; i < OWN * FRAGMENTS; i += CLUSTER * (WARPS + KS)) {
        const int f = i % FRAGMENTS, unit = i / FRAGMENTS, row = ((work.group * OWN + unit) * MT + f / NT) * 16;
        if (row >= work.rows || f % NT * 8 >= in.n_tokens) continue;
        const float4 v = sum_slices(shared, unit, f, lane), up = MODE == GATED ? sum_slices(shared, OWN + unit, f, lane) : v;
        write<MODE, NORM>(to, work.out, work.rows, work.stride, row, f % NT * 8, in.n_tokens, lane, v, up);
    }
    if (CLUSTER > 1) cluster_sync();
}

extern "C" __global__ void __clusters__(CLUSTER) __launch_bounds__(32 * WARPS_AT_MOST, BLOCKS)
decode(const unsigned short* x, int n_tokens, int width, float scale, const float* gates, const float* gain,
       unsigned short* halves, float* squares, float eps, const unsigned long long* ahead, int n_ahead,
       unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
       unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
       unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
       unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Barriers barriers;
    __shared__ float scales[NORM == BEFORE ? TOKENS : 1];
    dependents_may_launch();

    Work work = {(const u8*)tiles_0, (const u8*)tiles_1, (float*)out_0, rows_0, stride_0, type_0, (int)blockIdx.x / CLUSTER};
    const auto next = [&](u64 tiles, u64 out, int rows, int stride, int type) {
        if (work.group < work.groups()) return;
        work = {(const u8*)tiles, nullptr, (float*)out, rows, stride, type, work.group - work.groups()};
    };
    if (MODE != GATED) {
        next(tiles_1, out_1, rows_1, stride_1, type_1);
        next(tiles_2, out_2, rows_2, stride_2, type_2);
        next(tiles_3, out_3, rows_3, stride_3, type_3);
    }

    float total[MT][NT][4];
#pragma unroll
    for (int m = 0; m < MT; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) clear(total[m][n]);
    const Inputs in = {x, n_tokens, width, eps, ahead, n_ahead};
    const Results to = {scale, gates, gain, halves, squares, scales};
    multiply_any<QUANTS>(work.type, work, in, to, shared, barriers, total);

    if (KS * CLUSTER > 1 || MODE == GATED) {
        reduce(work, total, shared, in, to);
        return;
    }
    if (NORM == BEFORE) __syncthreads();
    if (threadIdx.x < 32 * WARPS) {
        const int lane = threadIdx.x % 32, row = (work.group * OWN + threadIdx.x / 32) * MT * 16;
#pragma unroll
        for (int f = 0; f < FRAGMENTS; ++f) {
            const float* v = total[f / NT][f % NT];
            const float4 sum = make_float4(v[0], v[1], v[2], v[3]);
            write<MODE, NORM>(to, work.out, work.rows, work.stride, row + f / NT * 16, f % NT * 8, n_tokens, lane, sum, sum);
        }
    }
}
