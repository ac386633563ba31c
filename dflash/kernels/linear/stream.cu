// out = x @ W.T for up to 64 tokens: weights of several types stream through shared memory once, tensor cores multiply.
//
// One block a processor stays for the whole launch. It takes every gridDim.x-th item: `across` tiles of 16 rows of one weight
// (gated: half of them the second weight's). K is cut into `slices` at fixed places, and a warp multiplies one slice of one
// tile of rows; its ring of tiles on their way runs on from item to item. After each item the block adds up the slices in
// order. Tokens lie in shared memory; where they don't fit at a time, K has `parts` of whole slices: a chunk of items meets
// one part after the other, and what an item has so far is kept. Which slices there are depends on K alone and they are
// added one after another, so a token has the same bits in any company.
//
// Grid: as many blocks as run at a time, at most; block 32 * WARPS; shared as `Room` divides it.
// Macros: QUANTS, the formats, separated by commas; TOKENS, 8 to 64; MODE; WARPS.
// Bytes: those of the tiles, once; the tokens once a block and chunk.
#include "../launch.cuh"
#include "ring.cuh"
#include "tile.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(WARPS)
#error "QUANTS, TOKENS, MODE and WARPS must be defined"
#endif
#define STORE 0
#define ADD 1
#define GATED 2

constexpr int NT = TOKENS / 8, CUT = 256, MOST_STAGES = 8, THREADS = 32 * WARPS, SIDES = MODE == GATED ? 2 : 1;
constexpr int ROOMS = NT == 1 ? 2 : 1;  // for slices on their way to be added
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && THREADS <= 1024, "see above");

template <class Q>
struct Sizes {
    static constexpr int SUM_BYTES = TOKENS * 4 * Q::MINIMA, TILES = CUT / Q::TILE_K;
};

constexpr int larger(int a, int b) { return a > b ? a : b; }
template <class Q>
constexpr int most_bytes() { return Q::BYTES; }
template <class Q, class Next, class... Others>
constexpr int most_bytes() { return larger(Q::BYTES, most_bytes<Next, Others...>()); }
template <class Q>
constexpr int sum_bytes() { return Sizes<Q>::SUM_BYTES * Sizes<Q>::TILES; }
template <class Q, class Next, class... Others>
constexpr int sum_bytes() { return sum_bytes<Q>() + sum_bytes<Next, Others...>(); }
constexpr int STAGE = (most_bytes<QUANTS>() + 127) / 128 * 128, SUMS = sum_bytes<QUANTS>();

// How work and shared memory are divided; the same for all blocks.
struct Plan {
    int width, n_tokens, slices, parts, across, chunk, stages, columns;

    __device__ int units() const { return (width + CUT - 1) / CUT; }
    __device__ int of_part() const { return (slices + parts - 1) / parts; }
    __device__ int cut(int slice) const { return units() * slice / slices; }
    __device__ int first_of(int part) const { return slices * part / parts; }
    __device__ int stride() const { return 2 * columns + 64; }
    __device__ int buffer() const { return min(n_tokens, TOKENS) * stride() + columns / CUT * SUMS; }
    __device__ int buffers() const { return parts > 1 ? 2 : 1; }
};

struct Weight {
    const u8* tiles;
    void* out;
    int rows, stride, type;
};

struct Weights {
    Weight of[4];

    // The weight of an item, which is counted from the weight's first then.
    __device__ Weight find(int& item, int own) const {
        int i = 0;
        if (MODE != GATED) {
#pragma unroll
            for (int k = 0; k < 3; ++k) {
                const int n = ((of[k].rows + 15) / 16 + own - 1) / own;
                if (i == k && item >= n) item -= n, ++i;
            }
        }
        return i == 0 ? of[0] : i == 1 ? of[1] : i == 2 ? of[2] : of[3];
    }
};

template <class Q>
__device__ __forceinline__ int tile_count(const Plan& plan, int unit) {
    return min(unit * Sizes<Q>::TILES, (plan.width + Q::TILE_K - 1) / Q::TILE_K);
}

// Tiles of one weight's rows and slice, on their way to one warp.
struct Run {
    const u8* next;
    int left, bytes;
};

template <class Q, class... Others>
__device__ __forceinline__ Run run_of(int type, const Plan& plan, const u8* tiles, int row_tile, int slice) {
    if constexpr (sizeof...(Others) > 0) {
        if (type > 0) return run_of<Others...>(type - 1, plan, tiles, row_tile, slice);
    }
    const int first = tile_count<Q>(plan, plan.cut(slice));
    const size_t of_row = tile_count<Q>(plan, plan.units());
    return {tiles + (row_tile * of_row + first) * Q::BYTES, tile_count<Q>(plan, plan.cut(slice + 1)) - first, Q::BYTES};
}

// Where a warp is in its work: item of the chunk, part, chunk.
struct Place {
    int item, part, begin, end;

    __device__ bool next(const Plan& plan, int n_items) {
        if (++item < end) return true;
        if (++part == plan.parts) part = 0, begin = end, end = min(n_items, begin + plan.chunk);
        item = begin;
        return begin < n_items;
    }
};

__device__ __forceinline__ void copy_tile(u32 to, const u8* from, int bytes, u32 barrier, int lane) {
#if __CUDA_ARCH__ >= 900
    if (lane == 0) barrier_expect(barrier, bytes), bulk_copy(to, from, bytes, barrier);
#else
    for (int at = 16 * lane; at < bytes; at += 512) copy_16(to + at, from + at);
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}

// The tiles that a warp has asked for, ahead of those it multiplies.
struct Ahead {
    const Plan& plan;
    const Weights& weights;
    Place place;
    Run run;
    int n_items, row, slice_of_part, stage;
    bool more;

    __device__ Run find() const {
        const int slice = plan.first_of(place.part) + slice_of_part;
        if (slice >= plan.first_of(place.part + 1)) return {nullptr, 0, 0};
        int item = blockIdx.x + place.item * gridDim.x;
        const int own = plan.across / SIDES;
        Weight weight = weights.find(item, own);
        if (MODE == GATED && row >= own) weight = weights.of[1];
        const int row_tile = item * own + row % own;
        if (row_tile * 16 >= weight.rows) return {nullptr, 0, 0};
        return run_of<QUANTS>(weight.type, plan, weight.tiles, row_tile, slice);
    }
    __device__ void fetch(u32 ring, u32 barriers, int lane) {
        while (more && run.left == 0) {
            more = place.next(plan, n_items);
            if (more) run = find();
        }
        if (!more) return;
        copy_tile(ring + stage * STAGE, run.next, run.bytes, barriers + 8 * stage, lane);
        run.next += run.bytes, --run.left;
        if (++stage == plan.stages) stage = 0;
    }
};

// Which stage of its ring a warp reads next.
struct Turn {
    int stage;
    u32 parity;

    __device__ void next(int stages) {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

__device__ __forceinline__ void barrier_wait_tokens(u32 barrier, u32 parity) {
#if __CUDA_ARCH__ >= 900
    barrier_wait(barrier, parity);
#else
    copy_wait<0>();
#endif
}

// Start to bring a part of the tokens; with bulk copies one thread does.
__device__ __forceinline__ void fetch_tokens(const Plan& plan, const u16* x, int part, u8* buffer, u32 barrier) {
    const int first = plan.cut(plan.first_of(part)) * CUT, past = min(plan.width, plan.cut(plan.first_of(part + 1)) * CUT);
    const int n_tokens = min(plan.n_tokens, TOKENS);
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
        const int bytes = 2 * (past - first);
        barrier_expect(barrier, n_tokens * bytes);
        for (int t = 0; t < n_tokens; ++t) {
            bulk_copy(shared_address(buffer + t * plan.stride()), x + (size_t)t * plan.width + first, bytes, barrier);
        }
    }
#else
    const int lines = (past - first) / 8;
    for (int i = threadIdx.x; i < n_tokens * lines; i += THREADS) {
        const int t = i / lines, k = i % lines;
        copy_16(shared_address(buffer + t * plan.stride() + 16 * k), x + (size_t)t * plan.width + first + 8 * k);
    }
    copy_commit();
#endif
}

template <class Q, class... Others>
__device__ __forceinline__ void sum_tokens(const Plan& plan, int columns, const u8* x, u8* sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if constexpr (Q::MINIMA > 0) {
        const TokenRows<Q, NT> rows(plan.stride(), plan.n_tokens, lane);
        for (int i = warp; i < columns / Q::TILE_K; i += WARPS) {
            sum_groups<Q, NT>(x + 2 * Q::TILE_K * i, rows, lane, sums + i * Sizes<Q>::SUM_BYTES);
        }
    }
    if constexpr (sizeof...(Others) > 0) sum_tokens<Others...>(plan, columns, x, sums + plan.columns / CUT * sum_bytes<Q>());
}

// total = a slice of a tile of rows, `n_tiles` from the part's `unit` on, times the tokens.
template <class Q, class... Others>
__device__ __forceinline__ void multiply(int type, const Plan& plan, int unit, int n_tiles, const u8* x, const u8* sums,
                                         Ahead& ahead, const u8* ring, u32 barriers, Turn& turn, float (&total)[1][NT][4]) {
    if constexpr (sizeof...(Others) > 0) {
        if (type > 0) {
            sums += plan.columns / CUT * sum_bytes<Q>();
            return multiply<Others...>(type - 1, plan, unit, n_tiles, x, sums, ahead, ring, barriers, turn, total);
        }
    }
    const int lane = threadIdx.x % 32;
    const TokenRows<Q, NT> rows(plan.stride(), plan.n_tokens, lane);
    x += 2 * CUT * unit, sums += sum_bytes<Q>() * unit;
#pragma unroll 1
    for (int i = 0; i < n_tiles; ++i) {
        const u8* const tile[1] = {ring + turn.stage * STAGE};
        barrier_wait(barriers + 8 * turn.stage, turn.parity);
        multiply_tile<Q, 1, NT>(tile, x, rows, sums, lane, total);
        __syncwarp();
        ahead.fetch(shared_address(ring), barriers, lane);
        turn.next(plan.stages);
        x += 2 * Q::TILE_K, sums += Sizes<Q>::SUM_BYTES;
    }
}

__device__ __forceinline__ float silu(float x) { return __fdiv_rn(x, 1.0f + expf(-x)); }

__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// Write a fragment: rows `row` and 8 further, tokens `token` and the next.
__device__ __forceinline__ void write(const Weight& weight, int row, int token, int n_tokens, float scale, float4 v, float4 up) {
    const float values[4] = {v.x, v.y, v.z, v.w}, ups[4] = {up.x, up.y, up.z, up.w};
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        const int r = row + e / 2 * 8, t = token + e % 2;
        if (r >= weight.rows || t >= n_tokens) continue;
        const size_t at = (size_t)t * weight.stride + r;
        const float value = __fmul_rn(values[e], scale);
        if (MODE == GATED) {
            const float inner = __fmul_rn(silu(value), __fmul_rn(ups[e], scale));
            ((u16*)weight.out)[at] = half_saturated(__fmul_rn(inner, INNER_SCALE));
        } else {
            float* out = (float*)weight.out;
            out[at] = MODE == ADD ? __fadd_rn(out[at], value) : value;
        }
    }
}

// Columns past the width meet weights of zero, but must be finite.
__device__ __forceinline__ void clear_rest(const Plan& plan, u8* buffers) {
    const int first = plan.cut(plan.first_of(plan.parts - 1)) * CUT, from = plan.width - first, to = plan.units() * CUT - first;
    u8* buffer = buffers + (plan.parts - 1) % plan.buffers() * plan.buffer();
    const int lines = (to - from) / 8;
    for (int i = threadIdx.x; i < plan.n_tokens * lines; i += THREADS) {
        *(uint4*)(buffer + i / lines * plan.stride() + 2 * from + 16 * (i % lines)) = make_uint4(0, 0, 0, 0);
    }
    fence_bulk_copies();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
stream(const unsigned short* x, int n_tokens, int width, float scale, int slices, int parts, int across, int chunk, int stages,
       int columns, int n_items, unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
       unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
       unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
       unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 of_weights[WARPS][MOST_STAGES], of_tokens[2];
    dependents_may_launch();
    const Plan plan = {width, n_tokens, slices, parts, across, chunk, stages, columns};
    const Weights weights = {{{(const u8*)tiles_0, (void*)out_0, rows_0, stride_0, type_0},
                              {(const u8*)tiles_1, (void*)out_1, rows_1, stride_1, type_1},
                              {(const u8*)tiles_2, (void*)out_2, rows_2, stride_2, type_2},
                              {(const u8*)tiles_3, (void*)out_3, rows_3, stride_3, type_3}}};
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int of_part = plan.of_part(), row = warp / of_part, own = across / SIDES;
    const int n_mine = (n_items - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;

    u8* ring = shared + warp * stages * STAGE;
    u8* buffers = shared + WARPS * stages * STAGE;
    float4* rooms = (float4*)(buffers + plan.buffers() * plan.buffer());
    float4* kept = rooms + ROOMS * WARPS * NT * 32;
    const u32 barriers = shared_address(of_weights[warp]);
    if (lane < stages) barrier_init(barriers + 8 * lane);
    if (threadIdx.x < 2) barrier_init(shared_address(&of_tokens[threadIdx.x]), 1);
    __syncwarp();

    Ahead ahead = {plan, weights, {0, 0, 0, min(n_mine, chunk)}, {nullptr, 0, 0}, n_mine, row, warp % of_part, 0, row < across};
    if (ahead.more) ahead.run = ahead.find();
    for (int s = 0; s < stages; ++s) ahead.fetch(shared_address(ring), barriers, lane);
    if (width % CUT) clear_rest(plan, buffers);
    wait_for_inputs();
    __syncthreads();
    const int n_uses = (n_mine + chunk - 1) / chunk * parts;
    const auto bring = [&](int use) {
        if (use < n_uses) {
            fetch_tokens(plan, x, use % parts, buffers + use % 2 * plan.buffer(), shared_address(&of_tokens[use % 2]));
        }
    };
    bring(0);
    if (parts > 1) bring(1);

    Turn turn = {0, 0};
    int use = 0;
#pragma unroll 1
    for (int begin = 0; begin < n_mine; begin += chunk) {
#pragma unroll 1
        for (int part = 0; part < parts; ++part) {
            const int first = plan.first_of(part), n_slices = plan.first_of(part + 1) - first;
            const u8* tokens = buffers + (parts > 1 ? use % 2 : 0) * plan.buffer();
            const u8* sums = tokens + n_tokens * plan.stride();
            if (parts > 1 || begin == 0) {
                barrier_wait_tokens(shared_address(&of_tokens[use % 2]), use / 2 % 2);
                __syncthreads();
                if constexpr (SUMS > 0) {
                    sum_tokens<QUANTS>(plan, (plan.cut(first + n_slices) - plan.cut(first)) * CUT, tokens, (u8*)sums);
                    __syncthreads();
                }
            }
#pragma unroll 1
            for (int i = begin; i < min(n_mine, begin + chunk); ++i) {
                int item = blockIdx.x + i * gridDim.x;
                Weight weight = weights.find(item, own);
                float total[1][NT][4];
#pragma unroll
                for (int n = 0; n < NT; ++n) clear(total[0][n]);
                const bool second = MODE == GATED && row >= own;
                const int row_tile = item * own + row % own, slice = first + warp % of_part;
                if (row < across && warp % of_part < n_slices && row_tile * 16 < weight.rows) {
                    const int type = second ? weights.of[1].type : weight.type;
                    const int unit = plan.cut(slice);
                    const int n_tiles = run_of<QUANTS>(type, plan, nullptr, row_tile, slice).left;
                    multiply<QUANTS>(type, plan, unit - plan.cut(first), n_tiles, tokens, sums, ahead, ring, barriers, turn, total);
                }
                float4* room = rooms + (ROOMS > 1 ? i % 2 : 0) * WARPS * NT * 32;
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    const float* v = total[0][n];
                    room[(warp * NT + n) * 32 + lane] = make_float4(v[0], v[1], v[2], v[3]);
                }
                __syncthreads();
                const auto sum = [&](int r, int n) {
                    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    float4* keep = kept + (((i - begin) * across + r) * NT + n) * 32 + lane;
                    if (part > 0) v = *keep;
#pragma unroll 4
                    for (int s = 0; s < n_slices; ++s) add(v, room[((r * of_part + s) * NT + n) * 32 + lane]);
                    if (part + 1 < parts) *keep = v;
                    return v;
                };
#pragma unroll 1
                for (int f = (warp + i * (own * NT)) % WARPS; f < own * NT; f += WARPS) {
                    const int r = f / NT, n = f % NT;
                    const float4 v = sum(r, n), up = MODE == GATED ? sum(own + r, n) : v;
                    if (part + 1 == parts) {
                        write(weight, (item * own + r) * 16 + lane / 4, 8 * n + lane % 4 * 2, n_tokens, scale, v, up);
                    }
                }
                if (ROOMS == 1) __syncthreads();
            }
            if (parts > 1) {
                __syncthreads();
                bring(use + 2);
                ++use;
            }
        }
    }
}
