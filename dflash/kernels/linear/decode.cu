// Multiply of a decode step: out = x @ W.T for up to 64 tokens. Packed weights stream through shared memory once; tensor
// cores multiply them.
//
// K is split into K_SLICES * CLUSTER slices (split-K). A warp takes one slice of a unit, which is MT tiles of 16 rows of one
// weight. Each warp has its own ring of weight tiles, so no warp waits for another one's copies. A block has ROW_UNITS units
// and K_SLICES slices of each.
// The warps of a slice share its tokens, X_COLUMNS columns a stage. They take turns: one warp copies a later stage and sums
// the groups of the current one.
// At the end the slices of an output are sent to one block, which adds them in order. With CLUSTER > 1 (Hopper) this may be
// another block of the cluster. Neither the slices nor the order of any sum depends on the tokens, so a token has the same
// bits in any batch.
//
// Grid: CLUSTER blocks for each ROW_UNITS * MT * 16 rows, one weight after the other; with MODE GATED half of a block's
// units belong to the second weight. Block 32 * K_SLICES * ROW_UNITS, shared memory SMEM_BYTES.
// Macros: QUANTS, the formats, separated by commas; TOKENS, capacity, 8 to 64; MODE and NORM, see epilogue.cuh; K_SLICES;
// CLUSTER; ROW_UNITS; MT; X_COLUMNS, a multiple of 256; X_STAGES, stages of tokens, at least 2 unless one holds a slice;
// SMEM_BYTES, of which the weight rings take all that the tokens leave; BLOCKS_PER_SM, blocks whose registers must fit a
// multiprocessor; POLLED, 1 if there is one token and the launch before publishes it and the squares of its norm (early_read.cuh);
// X_ROWS, tokens that a stage has memory for, 1 in place of TOKENS if there is one token; WEIGHTS_FIRST, stages of weights that a
// warp requests before the tokens, 1 unless defined.
// In a tensor split PEERS, RANK and PEER_DATA, see signals.cuh: results go to all GPUs, with `signals` signals unless PEER_DATA.
// Bytes: the tiles once; the tokens of its slices once for each block, mostly from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/flags_in_data.cuh"
#include "../gpu/include/signals.cuh"
#include "../gpu/include/early_read.cuh"
#include "../gpu/include/smem_ring.cuh"
#include "epilogue.cuh"
#include "../formats/mma_tile.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(NORM) || !defined(K_SLICES) || !defined(CLUSTER)
#error "QUANTS, TOKENS, MODE, NORM, K_SLICES and CLUSTER must be defined"
#endif
#if !defined(ROW_UNITS) || !defined(MT) || !defined(X_COLUMNS) || !defined(X_STAGES) || !defined(SMEM_BYTES) || \
    !defined(BLOCKS_PER_SM) || !defined(POLLED)
#error "ROW_UNITS, MT, X_COLUMNS, X_STAGES, SMEM_BYTES, BLOCKS_PER_SM and POLLED must be defined"
#endif

#ifndef X_ROWS
#define X_ROWS TOKENS
#endif
#ifndef WEIGHTS_FIRST
#define WEIGHTS_FIRST 1
#endif

constexpr int NT = TOKENS / 8, K_ALIGN = 256, MAX_STAGES = 8, FRAGMENTS = MT * NT;
constexpr int WARPS = ROW_UNITS * K_SLICES, SIDES = MODE == GATED ? 2 : 1, SIDE_UNITS = ROW_UNITS / SIDES;
// A stage of tokens is refilled this many stages after it was read, so that the refill seldom waits for a slow warp.
constexpr int X_SLACK = X_STAGES > 2 ? 2 : X_STAGES - 1;
// Fragments of each weight (gate, up) that a block adds up.
constexpr int SHARE = (SIDE_UNITS * FRAGMENTS + CLUSTER - 1) / CLUSTER;
// Whether the epilogue's inputs are requested before the weights are multiplied; with more tokens, registers are short.
constexpr bool EARLY_INPUTS = TOKENS == 8 && !POLLED && MODE != GATED;
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && X_COLUMNS % K_ALIGN == 0 && X_STAGES >= 1, "see the macros above");
static_assert(X_ROWS == TOKENS || (X_ROWS == 1 && TOKENS == 8), "one token is read in the place of all eight");
static_assert(MODE != GATED || ROW_UNITS % 2 == 0, "the gate and the up projection have equally many units");

// Layout of the shared memory of a block for one format.
template <class Q>
struct SmemLayout {
    static constexpr int TILES = X_COLUMNS / Q::TILE_K, STRIDE = token_stride<Q>(2 * X_COLUMNS);
    static constexpr int X_BYTES = X_ROWS * STRIDE, SUM_BYTES = TOKENS * 4 * Q::MINIMA,
                         X_STAGE_BYTES = X_BYTES + TILES * SUM_BYTES;
    static constexpr int FIT = (SMEM_BYTES - K_SLICES * X_STAGES * X_STAGE_BYTES) / (WARPS * MT * Q::BYTES);
    static constexpr int STAGES = FIT < MAX_STAGES ? FIT : MAX_STAGES;
    static_assert(SMEM_BYTES > K_SLICES * X_STAGES * X_STAGE_BYTES && FIT >= 1,
                  "SMEM_BYTES must leave space for one stage of weights");
    static_assert(SMEM_BYTES >= SIDES * SHARE * K_SLICES * CLUSTER * 512, "SMEM_BYTES must hold the sums of all slices");
};

// The block's part of one weight: `group` counts blocks (clusters) from the first row of the weight on.
struct Work {
    const u8 *tiles, *second;
    float* out;
    int rows, stride, type, group;

    __device__ int units() const { return ((rows + 15) / 16 + MT - 1) / MT; }
    __device__ int groups() const { return (units() + SIDE_UNITS - 1) / SIDE_UNITS; }
};

// `n_sent`: of the tokens, those that other GPUs have sent, if PEER_DATA.
struct Inputs {
    const u16* x;
    int n_tokens, width;
    float eps;
    int n_sent;
};

// The i-th fragment of a block, of 16 rows and eight tokens; without tokens if there is none.
__device__ __forceinline__ OutputTile output_tile(const Work& work, const Inputs& in, int i) {
    const int f = i % FRAGMENTS, row = ((work.group * SIDE_UNITS + i / FRAGMENTS) * MT + f / NT) * 16;
    return {work.out, work.rows, work.stride, row, f % NT * 8, i < SIDE_UNITS * FRAGMENTS ? in.n_tokens : 0};
}

struct Barriers {
    u64 weights[WARPS][MAX_STAGES], filled[K_SLICES][X_STAGES], summed[K_SLICES][X_STAGES], freed[K_SLICES][X_STAGES];
};

// First column of a slice of K.
__device__ __forceinline__ int slice_begin(const Inputs& in, int slice) {
    return (in.width + K_ALIGN - 1) / K_ALIGN * slice / (K_SLICES * CLUSTER) * K_ALIGN;
}

// Start to copy X_COLUMNS columns from `first` on of tokens `start`, `start + STEP` and so on; by a warp. Columns past the
// width are zero.
template <class Q, int STEP>
__device__ __forceinline__ void fetch_tokens(u32 to, const Inputs& in, int first, int start, u32 barrier, int lane) {
    const u16* from = in.x + (size_t)start * in.width + first + 8 * lane;
    const int inside = in.width - first - 8 * lane;
    to += start * SmemLayout<Q>::STRIDE + 16 * lane;
#pragma unroll 2
    for (int token = start; token < in.n_tokens; token += STEP) {
        UNROLL for (int i = 0; i < X_COLUMNS; i += 256)
            cp_async_16_zfill(to + 2 * i, from + (i < inside ? i : 0), i < inside);
        from += STEP * in.width, to += STEP * SmemLayout<Q>::STRIDE;
    }
    cp_async_mbarrier_arrive(barrier);
}

// The same for a token that the launch before publishes.
template <class Q>
__device__ __forceinline__ void poll_token(u32 to, const Inputs& in, int first, u32 barrier, int lane) {
    UNROLL for (int i = 0; i < X_COLUMNS; i += 256) {
        const int column = first + i + 8 * lane;
        uint4 v = make_uint4(0, 0, 0, 0);
        poll([&] {
            if (column < in.width) v = load_published_16(in.x + column);
            return all_halves_written(v);
        });
        st_shared_16(to + 16 * lane + 2 * i, v);
    }
    mbarrier_arrive(barrier);
}

template <class Q>
__device__ __forceinline__ void multiply_slice(const Work& work, const Inputs& in, const Epilogue& to, u8* shared,
                                               Barriers& barriers, float (&total)[MT][NT][4],
                                               EpilogueInputs<MODE, NORM>& loaded) {
    using P = SmemLayout<Q>;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int local_slice = warp / ROW_UNITS, unit = warp % ROW_UNITS, own = unit % SIDE_UNITS;
    const int slice = blockIdx.x % CLUSTER * K_SLICES + local_slice, first = slice_begin(in, slice),
              past = slice_begin(in, slice + 1);
    const int tiles_of_row = (in.width + Q::TILE_K - 1) / Q::TILE_K, row_tiles = (work.rows + 15) / 16;
    const int parts = (past - first + X_COLUMNS - 1) / X_COLUMNS;

    int i = first / Q::TILE_K;
    const int end = min(past / Q::TILE_K, tiles_of_row);
    const int n_active = min(SIDE_UNITS, work.units() - work.group * SIDE_UNITS);
    const int stages =
        GROUPED_RINGS || n_active == SIDE_UNITS ? P::STAGES : min(MAX_STAGES, P::STAGES * SIDE_UNITS / n_active);
    const bool active = own < n_active;
    const int ring_index = local_slice * (SIDES * n_active) + unit / SIDE_UNITS * n_active + own;
    u8* ring = shared + K_SLICES * X_STAGES * P::X_STAGE_BYTES + ring_index * (stages * MT * Q::BYTES);
    const u32 barrier = smem_address(&barriers.weights[warp][0]);
    const u8* tiles = MODE == GATED && unit >= SIDE_UNITS ? work.second : work.tiles;
    const u8* source[MT];
    UNROLL for (int m = 0; m < MT; ++m) {
        source[m] = tiles + (size_t)min((work.group * SIDE_UNITS + own) * MT + m, row_tiles - 1) * tiles_of_row * Q::BYTES;
    }
    const auto fetch = [&](int stage, int tile) {
        ring_copy<MT, Q::BYTES>(smem_address(ring) + stage * (MT * Q::BYTES), source, (size_t)tile * Q::BYTES,
                                barrier + 8 * stage, lane);
    };
    if (lane < MAX_STAGES) mbarrier_init_for_copies(barrier + 8 * lane);
    __syncwarp();  // the warp's barriers are initialised
    constexpr int FIRST = P::STAGES < WEIGHTS_FIRST ? P::STAGES : WEIGHTS_FIRST;
    UNROLL for (int s = 0; s < FIRST; ++s) {
        if (active && i + s < end) fetch(s, i + s);
        ring_commit();
    }

    u8* tokens = shared + local_slice * (X_STAGES * P::X_STAGE_BYTES);
    const u32 fills = smem_address(barriers.filled[local_slice]), sums = smem_address(barriers.summed[local_slice]);
    const u32 frees = smem_address(barriers.freed[local_slice]);
    if (unit == 0 && lane < X_STAGES) {
        mbarrier_init(fills + 8 * lane, 32 * ROW_UNITS);
        mbarrier_init(sums + 8 * lane, 32);
        mbarrier_init(frees + 8 * lane, ROW_UNITS);
    }
    __syncthreads();  // the barriers of all warps are initialised
    if (!POLLED || parts > X_STAGES) wait_on_dependent_grids();  // later tokens are not polled
#if PEER_DATA
    const int of_block = blockIdx.x % CLUSTER * K_SLICES;
    wait_for_halves(in.x, in.width, in.n_sent, slice_begin(in, of_block),
                    min(slice_begin(in, of_block + K_SLICES), in.width));
    __syncthreads();  // the tokens of all GPUs are there
#elif PEERS
    wait_for_peers(*to.peers);
#endif
    // All warps of the slice copy the first stages, so that the first stage is complete soon.
    for (int part = 0; part < min(X_STAGES, parts); ++part) {
        const u32 stage = smem_address(tokens + part * P::X_STAGE_BYTES), barrier = fills + 8 * part;
        if (!POLLED) {
            fetch_tokens<Q, ROW_UNITS>(stage, in, first + part * X_COLUMNS, unit, barrier, lane);
        } else if (unit == part % ROW_UNITS) {
            poll_token<Q>(stage, in, first + part * X_COLUMNS, barrier, lane);
        } else {
            mbarrier_arrive(barrier);
        }
    }
    if constexpr (EARLY_INPUTS) loaded.load(to, output_tile(work, in, blockIdx.x % CLUSTER + CLUSTER * warp), lane);
    // Until here few stages of weights were requested: with more, the tokens would arrive later.
    for (int s = FIRST; GROUPED_RINGS ? s < stages : active && s < stages && i + s < end; ++s) {
        if (!GROUPED_RINGS || (active && i + s < end)) fetch(s, i + s);
        ring_commit();
    }
    // By the last warps first, whose slice is the shortest if K is no multiple of all slices.
    if constexpr (NORM == INPUT_NORM)
        compute_norm_scales<POLLED>(to, in.width, in.eps, in.n_sent, WARPS - 1 - warp, WARPS, lane);

    const TokenRows<Q, NT> rows(P::STRIDE, in.n_tokens, lane);
    // Copies of cp.async arrive in order. So a warp requests many tokens before the weights that it reads after them, and
    // another one sums their groups. A few tokens are there soon enough.
    constexpr bool EARLY_REFILL = GROUPED_RINGS && TOKENS > 8 && P::STAGES > 1;
    constexpr int SUMS_LATER = GROUPED_RINGS && TOKENS > 8 && ROW_UNITS > 2 ? ROW_UNITS - 1 : 0;
    int stage = 0, parity = 0, buffer = 0, phase = 0, turn = 0;
#pragma unroll 1
    for (int part = 0; part < parts; ++part) {
        u8* x = tokens + buffer * P::X_STAGE_BYTES;
        // Both forms give the same value; which one saves a register depends on the format.
        const int part_end = P::TILES == 1 && Q::GROUP > 16 ? i + (i < end) : min(i + P::TILES, end);
        const int stop = active ? part_end : i;
        if (turn == unit) {
            const int next = part + X_STAGES - X_SLACK;
            if (!EARLY_REFILL && part >= X_SLACK && next < parts) {
                mbarrier_wait(frees + next % X_STAGES * 8, next / X_STAGES + 1 & 1);
                const int at = next % X_STAGES;
                if (ROW_UNITS > 1) mbarrier_arrive_no_complete(fills + 8 * at, ROW_UNITS - 1);
                fetch_tokens<Q, 1>(smem_address(tokens + at * P::X_STAGE_BYTES), in, first + next * X_COLUMNS, 0,
                                   fills + 8 * at, lane);
            }
        }
        mbarrier_wait(fills + 8 * buffer, phase);
        if constexpr (Q::MINIMA > 0) {
            if ((SUMS_LATER > 0 ? (turn + SUMS_LATER) % ROW_UNITS : turn) == unit) {
#pragma unroll 1
                for (int t = 0; t < P::TILES; ++t) {
                    sum_groups<Q, NT>(x + t * 2 * Q::TILE_K, rows, lane, x + P::X_BYTES + t * P::SUM_BYTES);
                }
                mbarrier_arrive(sums + 8 * buffer);
            }
        }
        const u8 *columns = x, *sums_of_columns = x + P::X_BYTES;
        const bool holds = EARLY_REFILL && i < stop;
#pragma unroll 1
        for (; i < stop; ++i) {
            const u8* tile[MT];
            UNROLL for (int m = 0; m < MT; ++m) tile[m] = ring + (stage * MT + m) * Q::BYTES;
            ring_wait<P::STAGES>(barrier + 8 * stage, parity);
            multiply_tile<Q, MT, NT>(tile, columns, rows, sums_of_columns, sums + 8 * buffer, phase, lane, total);
            __syncwarp();  // all lanes have read the tile that `fetch` overwrites
            if (!EARLY_REFILL || i + 1 < stop) {
                if (i + stages < end) fetch(stage, i + stages);
                ring_commit();
            }
            if (++stage == stages) stage = 0, parity ^= 1;
            columns += 2 * Q::TILE_K, sums_of_columns += P::SUM_BYTES;
        }
        __syncwarp();  // all lanes have read the tokens of this stage
        if (lane == 0) mbarrier_arrive(frees + 8 * buffer);
        if (++buffer == X_STAGES) buffer = 0, phase ^= 1;
        if (++turn == ROW_UNITS) turn = 0;
        if constexpr (EARLY_REFILL) {
            const int next = part + 1 + X_STAGES - X_SLACK, at = next % X_STAGES;
            if (turn == unit && part + 1 >= X_SLACK && next < parts) {
                mbarrier_wait(frees + 8 * at, next / X_STAGES + 1 & 1);
                if (ROW_UNITS > 1) mbarrier_arrive_no_complete(fills + 8 * at, ROW_UNITS - 1);
                fetch_tokens<Q, 1>(smem_address(tokens + at * P::X_STAGE_BYTES), in, first + next * X_COLUMNS, 0,
                                   fills + 8 * at, lane);
            }
            const int last = (stage > 0 ? stage : stages) - 1;
            if (holds && i - 1 + stages < end) fetch(last, i - 1 + stages);
            if (holds) ring_commit();
        }
    }
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Work& work, const Inputs& in, const Epilogue& to, u8* shared,
                                             Barriers& barriers, float (&total)[MT][NT][4],
                                             EpilogueInputs<MODE, NORM>& loaded) {
    if (sizeof...(Others) == 0 || type == 0) {
        multiply_slice<Q>(work, in, to, shared, barriers, total, loaded);
    } else if constexpr (sizeof...(Others) > 0) {
        multiply_any<Others...>(type - 1, work, in, to, shared, barriers, total, loaded);
    }
}

__device__ __forceinline__ void add_to(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

__device__ __forceinline__ void sync_all() {
    if (CLUSTER > 1) {
        cluster_sync();
    } else {
        __syncthreads();
    }
}

// Byte offset of slice `s` of fragment `i` of a weight (`side` 0, or 1 for the up projection) in the block that adds it up.
__device__ __forceinline__ int partial_at(int side, int i, int s) {
    return ((side * SHARE + i / CLUSTER) * (K_SLICES * CLUSTER) + s) * 512;
}

__device__ __forceinline__ float4 sum_slices(const u8* sums, int side, int i, int lane) {
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int s = 0; s < K_SLICES * CLUSTER; ++s)
        add_to(sum, *(const float4*)(sums + partial_at(side, i, s) + 16 * lane));
    return sum;
}

// Add up the slices. Each slice is stored in the shared memory of the block that adds it; the warps of that block take
// fragments in turn. `loaded`: inputs of the first one, if they are requested early.
__device__ __forceinline__ void reduce(const Work& work, const float (&total)[MT][NT][4], u8* shared, const Inputs& in,
                                       const Epilogue& to, EpilogueInputs<MODE, NORM>& loaded) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rank = blockIdx.x % CLUSTER;
    int i = rank + CLUSTER * warp;
    if (!EARLY_INPUTS) loaded.load(to, output_tile(work, in, i), lane);
    sync_all();  // no warp reads the stages that the sums overwrite
    const int unit = warp % ROW_UNITS, slice = rank * K_SLICES + warp / ROW_UNITS;
    UNROLL for (int f = 0; f < FRAGMENTS; ++f) {
        if (f % NT * 8 >= in.n_tokens) continue;
        const float* v = total[f / NT][f % NT];
        const float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        const int fragment = unit % SIDE_UNITS * FRAGMENTS + f;
        u8* at = shared + partial_at(unit / SIDE_UNITS, fragment, slice) + 16 * lane;
        if (CLUSTER > 1) {
            st_cluster_16(smem_address(at), fragment % CLUSTER, sum);
        } else {
            *(float4*)at = sum;
        }
    }
    sync_all();  // the partial sums of all warps are stored
#pragma unroll 1
    for (; i < SIDE_UNITS * FRAGMENTS; i += CLUSTER * WARPS) {
        const OutputTile at = output_tile(work, in, i);
        if (at.row < work.rows && at.token < in.n_tokens) {
            const float4 v = sum_slices(shared, 0, i, lane), up = MODE == GATED ? sum_slices(shared, 1, i, lane) : v;
            write<MODE, NORM>(to, at, loaded, lane, v, up);
        }
        loaded.load(to, output_tile(work, in, i + CLUSTER * WARPS), lane);
    }
}

// Write the sums of a block whose warps have the whole of K.
__device__ __forceinline__ void write_unsplit(const Work& work, const float (&total)[MT][NT][4], const Inputs& in,
                                              const Epilogue& to) {
    if (NORM == INPUT_NORM) __syncthreads();  // the norm factors are stored
    const int lane = threadIdx.x % 32, row = (work.group * SIDE_UNITS + threadIdx.x / 32) * MT * 16;
    UNROLL for (int f = 0; f < FRAGMENTS; ++f) {
        const float* v = total[f / NT][f % NT];
        const float4 sum = make_float4(v[0], v[1], v[2], v[3]);
        const OutputTile at = {work.out, work.rows, work.stride, row + f / NT * 16, f % NT * 8, in.n_tokens};
        EpilogueInputs<MODE, NORM> loaded;
        loaded.load(to, at, lane);
        write<MODE, NORM>(to, at, loaded, lane, sum, sum);
    }
}

extern "C" __global__ void __cluster_size__(CLUSTER) __launch_bounds__(32 * WARPS, BLOCKS_PER_SM)
decode(const unsigned short* x, int n_tokens, int width, float scale, const float* gates, const float* gain,
       unsigned short* halves, float* squares, float eps, float* kept, const unsigned long long* peers,
       unsigned long long signals, unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
       unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
       unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
       unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ Barriers barriers;
    __shared__ float scales[NORM == INPUT_NORM ? TOKENS : 1];
    launch_dependent_grids();
#if PEERS
    __shared__ PeerTable peer_table;
    load_peers(peer_table, peers);
    const PeerTable* const table = &peer_table;
#else
    const PeerTable* const table = nullptr;
#endif
#if PEER_DATA
    const int n_sent = rows_of_batch(peers, n_tokens);
    n_tokens = max(n_sent, 1);
#else
    const int n_sent = n_tokens;
#endif

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
    clear(total);
    const Inputs in = {x, n_tokens, width, eps, n_sent};
    const Epilogue to = {scale, gates, gain, halves, squares, scales, kept, table};
    EpilogueInputs<MODE, NORM> loaded;
    multiply_any<QUANTS>(work.type, work, in, to, shared, barriers, total, loaded);
    if (POLLED) wait_on_dependent_grids();  // earlier launches may read what this one writes
#if PEER_DATA
    clear_rows(peer_table, n_sent);
#endif

    if (K_SLICES * CLUSTER > 1 || MODE == GATED) {
        reduce(work, total, shared, in, to, loaded);
    } else {
        write_unsplit(work, total, in, to);
    }
#if PEERS && !PEER_DATA
    signal_peers(peer_table, signals, blockIdx.x, gridDim.x);
#endif
}
