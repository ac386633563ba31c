// out = x @ W.T for up to 64 tokens: weights of several types stream through shared memory once, tensor cores multiply.
//
// K is cut into KS * CLUSTER slices. A warp takes one slice of a unit, MT tiles of 16 rows of one weight, and has a ring of
// tiles on their way that no other warp waits for. A block has UNITS units and KS slices of each; the warps of a slice share
// its tokens, COLUMNS columns at a time: in turn they bring a part that is needed later and sum up the groups of the one at
// hand. At last every slice goes to the block that adds up all of them in order, with CLUSTER > 1 (Hopper) perhaps another one
// of its cluster. Which slices there are does not depend on the tokens, and nothing else orders a sum, so a token has the same
// bits in any company.
//
// Grid: CLUSTER blocks for each UNITS * MT * 16 rows, of one weight after the other (gated: half of the units are the second
// weight's); block 32 * KS * UNITS; shared SHARED bytes.
// Macros: QUANTS, the formats, separated by commas; TOKENS, 8 to 64; MODE and NORM, see results.cuh; KS; CLUSTER; UNITS; MT;
// COLUMNS, a multiple of 256; AHEAD, how many parts of the tokens there is room for; SHARED, which weights fill as far as it
// goes; BLOCKS of a processor, for which registers are given out.
// Bytes: those of the tiles, once; of the tokens a slice of K a block.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/smem_ring.cuh"
#include "results.cuh"
#include "tile.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(NORM) || !defined(KS) || !defined(CLUSTER)
#error "QUANTS, TOKENS, MODE, NORM, KS and CLUSTER must be defined"
#endif
#if !defined(UNITS) || !defined(MT) || !defined(COLUMNS) || !defined(AHEAD) || !defined(SHARED) || !defined(BLOCKS)
#error "UNITS, MT, COLUMNS, AHEAD, SHARED and BLOCKS must be defined"
#endif

constexpr int NT = TOKENS / 8, CUT = 256, MOST_STAGES = 8, FRAGMENTS = MT * NT;
constexpr int WARPS = UNITS * KS, SIDES = MODE == GATED ? 2 : 1, OWN = UNITS / SIDES;
// With how many parts less on their way a part is awaited that has to be free.
constexpr int SLACK = AHEAD > 2 ? 2 : 1;
// Fragments that a block adds up, of each side.
constexpr int SHARE = (OWN * FRAGMENTS + CLUSTER - 1) / CLUSTER;
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && COLUMNS % CUT == 0 && AHEAD >= 2, "see above");
static_assert(MODE != GATED || UNITS % 2 == 0, "gate and up have as many units");

// How the shared memory of a block is divided for one format.
template <class Q>
struct Plan {
    static constexpr int TILES = COLUMNS / Q::TILE_K, STRIDE = token_stride<Q>(2 * COLUMNS);
    static constexpr int X_BYTES = TOKENS * STRIDE, SUM_BYTES = TOKENS * 4 * Q::MINIMA, PART = X_BYTES + TILES * SUM_BYTES;
    static constexpr int FIT = (SHARED - KS * AHEAD * PART) / (WARPS * MT * Q::BYTES);
    static constexpr int STAGES = FIT < MOST_STAGES ? FIT : MOST_STAGES;
    static_assert(SHARED > KS * AHEAD * PART && FIT >= 1, "no room for weights");
    static_assert(SHARED >= SIDES * SHARE * KS * CLUSTER * 512, "no room for sums");
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
    u64 weights[WARPS][MOST_STAGES], filled[KS][AHEAD], summed[KS][AHEAD], freed[KS][AHEAD];
};

// Where K is cut, in columns.
__device__ __forceinline__ int cut(const Inputs& in, int slice) {
    return (in.width + CUT - 1) / CUT * slice / (KS * CLUSTER) * CUT;
}

// A warp begins to copy columns `first`.. of tokens `start`, `start + STEP` and so on; what lies past the width is zero.
template <class Q, int STEP>
__device__ __forceinline__ void fetch_tokens(u32 to, const Inputs& in, int first, int start, u32 barrier, int lane) {
    const u16* from = in.x + (size_t)start * in.width + first + 8 * lane;
    const int inside = in.width - first - 8 * lane;
    to += start * Plan<Q>::STRIDE + 16 * lane;
#pragma unroll 2
    for (int token = start; token < in.n_tokens; token += STEP) {
#pragma unroll
        for (int i = 0; i < COLUMNS; i += 256) cp_async_16_zfill(to + 2 * i, from + (i < inside ? i : 0), i < inside);
        from += STEP * in.width, to += STEP * Plan<Q>::STRIDE;
    }
    cp_async_mbarrier_arrive(barrier);
}

// Ask for what later launches read first, some of it by one warp of each slice: memory is idle while a launch ends.
__device__ __forceinline__ void fetch_ahead(const u64* pieces, int n, int part_of_k, int lane) {
    for (int i = (blockIdx.x * KS + part_of_k) * 32 + lane; i < n; i += gridDim.x * KS * 32) {
        bulk_prefetch_l2(pieces[2 * i], (u32)pieces[2 * i + 1]);
    }
}

template <class Q>
__device__ __forceinline__ void multiply_slice(const Work& work, const Inputs& in, const Results& to, u8* shared,
                                               Barriers& barriers, float (&total)[MT][NT][4]) {
    using P = Plan<Q>;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int part_of_k = warp / UNITS, unit = warp % UNITS, own = unit % OWN;
    const int slice = blockIdx.x % CLUSTER * KS + part_of_k, first = cut(in, slice), past = cut(in, slice + 1);
    const int tiles_of_row = (in.width + Q::TILE_K - 1) / Q::TILE_K, row_tiles = (work.rows + 15) / 16;
    const int parts = (past - first + COLUMNS - 1) / COLUMNS;

    int i = first / Q::TILE_K;
    const int end = min(past / Q::TILE_K, tiles_of_row);
    const int n_active = min(OWN, work.units() - work.group * OWN);
    const int stages = n_active == OWN ? P::STAGES : min(MOST_STAGES, P::STAGES * OWN / n_active);
    const bool active = own < n_active;
    const int place = part_of_k * (SIDES * n_active) + unit / OWN * n_active + own;
    u8* ring = shared + KS * AHEAD * P::PART + place * (stages * MT * Q::BYTES);
    const u32 barrier = smem_address(&barriers.weights[warp][0]);
    const u8* tiles = MODE == GATED && unit >= OWN ? work.second : work.tiles;
    const u8* source[MT];
#pragma unroll
    for (int m = 0; m < MT; ++m) {
        source[m] = tiles + (size_t)min((work.group * OWN + own) * MT + m, row_tiles - 1) * tiles_of_row * Q::BYTES;
    }
    const auto fetch = [&](int stage, int tile) {
        copy_tiles_async<MT, Q::BYTES>(smem_address(ring) + stage * (MT * Q::BYTES), source, (size_t)tile * Q::BYTES,
                                barrier + 8 * stage, lane);
    };
    if (lane < MOST_STAGES) mbarrier_init_for_copies(barrier + 8 * lane);
    __syncwarp();
    if (active && i < end) fetch(0, i);

    u8* tokens = shared + part_of_k * (AHEAD * P::PART);
    const u32 fills = smem_address(barriers.filled[part_of_k]), sums = smem_address(barriers.summed[part_of_k]);
    const u32 frees = smem_address(barriers.freed[part_of_k]);
    if (unit == 0 && lane < AHEAD) {
        mbarrier_init(fills + 8 * lane, 32 * UNITS);
        mbarrier_init(sums + 8 * lane, 32);
        mbarrier_init(frees + 8 * lane, UNITS);
    }
    __syncthreads();
    wait_on_dependent_grids();
    // All warps of the slice bring the first parts, so that the first of them is there soon.
    for (int part = 0; part < min(AHEAD, parts); ++part) {
        fetch_tokens<Q, UNITS>(smem_address(tokens + part * P::PART), in, first + part * COLUMNS, unit, fills + 8 * part, lane);
    }
    // Ahead of them there are weights of one stage only: they would wait behind more.
    for (int s = 1; active && s < stages && i + s < end; ++s) fetch(s, i + s);
    if constexpr (NORM == BEFORE) find_scales(to, in.width, in.eps, in.n_tokens, warp, WARPS, lane);

    const TokenRows<Q, NT> rows(P::STRIDE, in.n_tokens, lane);
    int stage = 0, parity = 0, buffer = 0, phase = 0, turn = 0;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
        u8* x = tokens + buffer * P::PART;
        // Both are the same; which one spares a register depends on the format.
        const int most = P::TILES == 1 && Q::GROUP > 16 ? i + (i < end) : min(i + P::TILES, end);
        const int stop = active ? most : i;
        if (turn == unit) {
            const int next = part + AHEAD - SLACK;
            if (part >= SLACK && next < parts) {
                mbarrier_wait(frees + next % AHEAD * 8, next / AHEAD + 1 & 1);
                const int at = next % AHEAD;
                if (UNITS > 1) mbarrier_arrive_no_complete(fills + 8 * at, UNITS - 1);
                fetch_tokens<Q, 1>(smem_address(tokens + at * P::PART), in, first + next * COLUMNS, 0, fills + 8 * at, lane);
            }
            if (next == max(parts, AHEAD - SLACK)) fetch_ahead(in.ahead, in.n_ahead, part_of_k, lane);
        }
        mbarrier_wait(fills + 8 * buffer, phase);
        if constexpr (Q::MINIMA > 0) {
            if (turn == unit) {
#pragma unroll 1
                for (int t = 0; t < P::TILES; ++t) {
                    sum_groups<Q, NT>(x + t * 2 * Q::TILE_K, rows, lane, x + P::X_BYTES + t * P::SUM_BYTES);
                }
                mbarrier_arrive(sums + 8 * buffer);
            }
        }
        const u8 *columns = x, *sums_of_columns = x + P::X_BYTES;
#pragma unroll 1
        for (; i < stop; ++i) {
            const u8* tile[MT];
#pragma unroll
            for (int m = 0; m < MT; ++m) tile[m] = ring + (stage * MT + m) * Q::BYTES;
            mbarrier_wait(barrier + 8 * stage, parity);
            multiply_tile<Q, MT, NT>(tile, columns, rows, sums_of_columns, sums + 8 * buffer, phase, lane, total);
            __syncwarp();
            if (i + stages < end) fetch(stage, i + stages);
            if (++stage == stages) stage = 0, parity ^= 1;
            columns += 2 * Q::TILE_K, sums_of_columns += P::SUM_BYTES;
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(frees + 8 * buffer);
        if (++buffer == AHEAD) buffer = 0, phase ^= 1;
        if (++turn == UNITS) turn = 0;
    }
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

__device__ __forceinline__ void sync_all() {
    if (CLUSTER > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

// Where slice `s` of fragment `i` of a side lies in the block that adds it up.
__device__ __forceinline__ int place_of(int side, int i, int s) {
    return ((side * SHARE + i / CLUSTER) * (KS * CLUSTER) + s) * 512;
}

__device__ __forceinline__ float4 sum_slices(const u8* sums, int side, int i, int lane) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int s = 0; s < KS * CLUSTER; ++s) add(sum, *(const float4*)(sums + place_of(side, i, s) + 16 * lane));
    return sum;
}

// Slices go to the shared memory of the block that adds them up, whose warps take fragments in turn.
__device__ __forceinline__ void reduce(const Work& work, const float (&total)[MT][NT][4], u8* shared, const Inputs& in,
                                       const Results& to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER;
    const auto place = [&](int i) {
        const int f = i % FRAGMENTS, row = ((work.group * OWN + i / FRAGMENTS) * MT + f / NT) * 16;
        return Place{work.out, work.rows, work.stride, row, f % NT * 8, i < OWN * FRAGMENTS ? in.n_tokens : 0};
    };
    int i = rank + CLUSTER * warp;
    Given<MODE, NORM> given;
    given.load(to, place(i), lane);
    sync_all();
    const int unit = warp % UNITS, slice = rank * KS + warp / UNITS;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
        if (f % NT * 8 >= in.n_tokens) continue;
        const float* v = total[f / NT][f % NT];
        const float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        const int whole = unit % OWN * FRAGMENTS + f;
        u8* at = shared + place_of(unit / OWN, whole, slice) + 16 * lane;
        if (CLUSTER > 1) {
            st_cluster_16(smem_address(at), whole % CLUSTER, sum);
        } else {
            *(float4*)at = sum;
        }
    }
    sync_all();
#pragma unroll 1
    for (; i < OWN * FRAGMENTS; i += CLUSTER * WARPS) {
        const Place at = place(i);
        if (at.row < work.rows && at.token < in.n_tokens) {
            const float4 v = sum_slices(shared, 0, i, lane), up = MODE == GATED ? sum_slices(shared, 1, i, lane) : v;
            write<MODE, NORM>(to, at, given, lane, v, up);
        }
        given.load(to, place(i + CLUSTER * WARPS), lane);
    }
}

extern "C" __global__ void __cluster_size__(CLUSTER) __launch_bounds__(32 * WARPS, BLOCKS)
decode(const unsigned short* x, int n_tokens, int width, float scale, const float* gates, const float* gain,
       unsigned short* halves, float* squares, float eps, float* kept, const unsigned long long* ahead, int n_ahead,
       unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
       unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
       unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
       unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Barriers barriers;
    __shared__ float scales[NORM == BEFORE ? TOKENS : 1];
    launch_dependent_grids();

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
    const Results to = {scale, gates, gain, halves, squares, scales, kept};
    multiply_any<QUANTS>(work.type, work, in, to, shared, barriers, total);

    if (KS * CLUSTER > 1 || MODE == GATED) {
        reduce(work, total, shared, in, to);
        return;
    }
    if (NORM == BEFORE) __syncthreads();
    const int lane = threadIdx.x % 32, row = (work.group * OWN + threadIdx.x / 32) * MT * 16;
#pragma unroll
    for (int f = 0; f < FRAGMENTS; ++f) {
        const float* v = total[f / NT][f % NT];
        const float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        const Place at = {work.out, work.rows, work.stride, row + f / NT * 16, f % NT * 8, n_tokens};
        Given<MODE, NORM> given;
        given.load(to, at, lane);
        write<MODE, NORM>(to, at, given, lane, sum, sum);
    }
}
