// Multiply of a prefill on Hopper, from packed tiles: out = x @ W.T. It multiplies the float16 values that unpack.cu writes
// for prefill_hopper.cu, in the same order, so the results have the same bits.
//
// An item is a strip of 128 rows of W (GATED: 64 of the gate and the same 64 of the up projection) times TOKENS tokens, a unit
// 256 columns of it. Each block takes an equal share of all units in a row. A share may begin or end inside an item; then the
// block before passes its sums on. It does so first and the block after continues them last, so that none waits long.
//
// Roles: one producer thread copies the tokens with TMA, 64 columns a stage; another one copies packed tiles. Each of eight
// consumer warps unpacks 16 rows by 64 columns to A fragments in its registers, while its warpgroup multiplies 64 rows by the
// columns before with all tokens (wgmma). Concurrent blocks share rows of W.
//
// Grid: at most one block a multiprocessor, since blocks wait for each other, and at most one for each item. Block 384, shared
// memory 1024 + X_STAGES * X_BYTES + EXCHANGES + W_STAGES * W_BYTES.
// Macros: QUANTS, the formats, separated by commas; a GATED launch has one, or that of the gate and that of the up projection,
// with tiles of equally many columns; TOKENS, 64, 128, 192 or 256; X_STAGES, W_STAGES; MODE as in prefill.cu.
// Bytes: the tiles once for each TOKENS tokens, mostly from the L2 cache; x once for each strip, from the L2 cache; the sums that
// are passed on once.
#define MAY_SPILL  // a few values of the producers; with several formats also of the consumers
#include "../formats/half_fragments.cuh"
#include "../formats/several.cuh"
#include "../gpu/include/clear.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill_epilogue.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(X_STAGES) || !defined(W_STAGES) || !defined(MODE)
#error "QUANTS, TOKENS, X_STAGES, W_STAGES and MODE must be defined"
#endif

using All = Formats<QUANTS>;
constexpr int WARPS = 8, NT = TOKENS / 8, THREADS = 32 * WARPS + 128, STRIP_ROWS = MODE == GATED ? 64 : 128, UNIT_COLUMNS = 256;
constexpr int X_BYTES = TOKENS * 128, W_BYTES = 8 * All::BYTES;
// Memory of half_fragments.cuh for each consumer warp, at the end of a part for sums of 128 rows, padded, and 32 tokens.
constexpr int SUM_STRIDE = 132, EXCHANGES = 32 * SUM_STRIDE * 4;
static_assert(EXCHANGES >= WARPS * 2 * EXCHANGE_BYTES, "the memory has two uses");
constexpr int EXCHANGES_AT = X_STAGES * X_BYTES, W_AT = EXCHANGES_AT + EXCHANGES;
#include "wide/passed.cuh"

using Tokens = PipelineState<X_STAGES, X_BYTES>;
using Tiles = PipelineState<W_STAGES, W_BYTES>;

// A matrix, or a gate and an up projection.
struct Weight {
    u64 first_strip, rows;
    const u8* tiles[2];
    float* out;
    u64 stride, type;
};

// What all roles know of a launch. `across`: items of a strip; `weights` has one more entry, whose first strip is past the last.
struct Launch {
    const Weight* weights;
    int items, across, n_rows, width;

    __device__ __forceinline__ int units() const { return (width + UNIT_COLUMNS - 1) / UNIT_COLUMNS; }
};

// An item, or a part of it: units `first` to `past`.
struct Part {
    const Weight* weight;
    int strip, token, first, past;
    bool continues, goes_on;  // another block has the beginning, or the end

    // Tiles of a row of the weight, and those of the part: `first_tile` to `past_tile`.
    __device__ __forceinline__ int tiles_of_row(const Launch& of) const {
        const int columns = All::tile_k((int)weight->type);
        return (of.width + columns - 1) / columns;
    }
    __device__ __forceinline__ int first_tile() const { return first * (UNIT_COLUMNS / All::tile_k((int)weight->type)); }
    __device__ __forceinline__ int past_tile(const Launch& of) const {
        return min(past * (UNIT_COLUMNS / All::tile_k((int)weight->type)), tiles_of_row(of));
    }
};

// The parts of a block's share in their order: the beginning of its last item, whole items, the end of its first item.
struct Share {
    int units, begin, end, at;

    __device__ __forceinline__ Share(const Launch& of) : units(of.units()), at(-1) {
        const long long all = (long long)of.items * units;
        begin = (int)(all * blockIdx.x / gridDim.x), end = (int)(all * (blockIdx.x + 1) / gridDim.x);
    }
    __device__ __forceinline__ bool next(const Launch& of, Part& part) {
        const int whole = (begin + units - 1) / units, past_whole = end / units;
        if (at < 0) {
            at = whole;
            if (end % units > 0) return set(of, part, past_whole, 0, end % units);
        }
        if (at < past_whole) return set(of, part, at++, 0, units);
        if (at > past_whole || begin % units == 0) return false;
        at = past_whole + 1;
        return set(of, part, begin / units, begin % units, units);
    }

  private:
    __device__ __forceinline__ bool set(const Launch& of, Part& part, int item, int first, int past) const {
        part.weight = of.weights, part.strip = item / of.across, part.token = item % of.across * TOKENS;
        while (part.weight[1].first_strip <= part.strip) ++part.weight;
        part.strip -= (int)part.weight->first_strip;
        part.first = first, part.past = past, part.continues = first > 0, part.goes_on = past < units;
        return true;
    }
};

// Role of a producer thread: copy the tiles of a part.
__device__ __forceinline__ void copy_tiles(Tiles& tiles, const Part& part, const Launch& of) {
    const int bytes = All::bytes((int)part.weight->type), of_row = part.tiles_of_row(of), past = part.past_tile(of);
    const int second_bytes = MODE == GATED ? All::bytes(1) : bytes;  // of one format, if there is but one
    const int first = part.strip * (STRIP_ROWS / 16), last = ((int)part.weight->rows + 15) / 16 - 1;
    for (int i = part.first_tile(); i < past; ++i) {
        mbarrier_wait(tiles.empty_barrier(), tiles.phase ^ 1);
        mbarrier_arrive_expect_tx(tiles.full_barrier(), 4 * (bytes + second_bytes));
        UNROLL for (int q = 0; q < 8; ++q) {
            const int row_tile = min(first + (MODE == GATED ? q % 4 : q), last), of_tile = q < 4 ? bytes : second_bytes;
            const u8* from = part.weight->tiles[MODE == GATED && q >= 4] + ((size_t)row_tile * of_row + i) * of_tile;
            bulk_copy(tiles.tile() + min(q, 4) * bytes + max(q - 4, 0) * second_bytes, from, of_tile, tiles.full_barrier());
        }
        tiles.next();
    }
}

// Role of a producer thread: copy the tokens of a part. Columns past the width are zero.
__device__ __forceinline__ void copy_tokens(Tokens& tokens, const TensorMap& x, const Part& part, const Launch& of) {
    const int of_tile = All::tile_k((int)part.weight->type) / 64, past = part.past_tile(of) * of_tile;
    for (int i = part.first_tile() * of_tile; i < past; ++i) {
        mbarrier_wait(tokens.empty_barrier(), tokens.phase ^ 1);
        mbarrier_arrive_expect_tx(tokens.full_barrier(), X_BYTES);
        UNROLL for (int n = 0; n < TOKENS; n += 64)
            tma_load_2d(tokens.tile() + n * 128, x, i * 64, part.token + n, tokens.full_barrier());
        tokens.next();
    }
}

// A consumer warp: number `warp` of its block unpacks tile `warp` of a stage. `exchange`: its memory of half_fragments.cuh, for
// two times 32 columns.
struct Consumer {
    int warp, lane;
    u8* exchange;

    __device__ __forceinline__ void release_tile(u32 barrier) const {
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(barrier);
    }
    // The multiply is complete in all warps of the warpgroup.
    __device__ __forceinline__ void release_tokens(u32 barrier) const {
        if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(barrier);
    }
};

// d += a warpgroup's rows of a part times the tokens.
template <class Q>
__device__ __forceinline__ void multiply(Tokens& tokens, Tiles& tiles, const u8* stages, const Consumer& by, int n,
                                         float (&d)[NT][4]) {
    constexpr int STEPS = Q::TILE_K / 64;
    const int g = by.lane / 4, t = by.lane % 4;
    const u32 exchange = smem_address(by.exchange);
    u32 a[2][4][4], read = 0;  // barrier of the tokens that the multiply on its way reads
    int i = 0;
#pragma unroll 1
    do {  // a part has tiles; behind a loop that might end at once ptxas would wait for each multiply
        mbarrier_wait(tiles.full_barrier(), tiles.phase);
        const u8* tile = stages + tiles.stage * W_BYTES;
        const RowOfTile<Q> upper(tile, g, t), lower(tile, g + 8, t);
        typename Q::Scales scales(tile, by.lane);
        UNROLL for (int s = 0; s < STEPS; ++s) {
            u32 pairs[2][2][4];
            UNROLL for (int b = 0; b < 2; ++b) {
                u32 words[8];
                warp_fragment<Q>(tile, scales, 2 * s + b, by.lane, words);
                const u32 of_upper[4] = {words[0], words[2], words[4], words[6]},
                          of_lower[4] = {words[1], words[3], words[5], words[7]};
                upper.halves(of_upper, 2 * s + b, by.lane, pairs[b][0]);
                lower.halves(of_lower, 2 * s + b, by.lane, pairs[b][1]);
            }
            __syncwarp();  // the columns before were read
            UNROLL for (int b = 0; b < 2; ++b) {
                store_row<Q>(exchange + b * EXCHANGE_BYTES, g, t, pairs[b][0]);
                store_row<Q>(exchange + b * EXCHANGE_BYTES, g + 8, t, pairs[b][1]);
            }
            __syncwarp();  // the columns are stored, and after the last ones the tile was read
            if (s == STEPS - 1) by.release_tile(tiles.empty_barrier());
            u32(&now)[4][4] = a[s % 2];  // the multiply before the latest has read these
            load_fragments(exchange, by.lane, now[0], now[1]);
            load_fragments(exchange + EXCHANGE_BYTES, by.lane, now[2], now[3]);
            mbarrier_wait(tokens.full_barrier(), tokens.phase);
            const u64 columns = wgmma_descriptor(tokens.tile());
            wgmma_fence_operand(d);
            wgmma_fence();
            UNROLL for (int k = 0; k < 4; ++k) wgmma_rs(d, now[k], columns + 2 * k, 1);
            wgmma_commit_group();
            wgmma_wait_group<(STEPS > 1)>();
            if (STEPS == 1 || s > 0 || i > 0) by.release_tokens(STEPS == 1 ? tokens.empty_barrier() : read);
            read = tokens.empty_barrier();
            tokens.next();
        }
        tiles.next();
    } while (++i < n);
    wgmma_wait_group<0>();
    wgmma_fence_operand(d);
    if (STEPS > 1) by.release_tokens(read);
}

// Four consecutive outputs of a token, or two of a gate and its up projection.
struct Outputs {
    const Part& part;
    int row, n_rows;
    float scale;

    __device__ __forceinline__ int existing(int token) const {
        return token < n_rows ? min(MODE == GATED ? 2 : 4, (int)part.weight->rows - row) : 0;
    }
    template <class T>
    __device__ __forceinline__ T* at(int token) const {
        return (T*)part.weight->out + token * part.weight->stride + row;
    }
    // `sums`: of the token's rows of the strip, lane after lane.
    __device__ __forceinline__ void store(int token, float4 s) const {
        const Output out = {0, part.weight->rows, (u64)part.weight->out, (u64)part.weight->stride};
        if (token < n_rows) store_4<MODE>(out, token, row, {s.x, s.y, s.z, s.w}, scale);
    }
    // Activated gates times the up projection, for four tokens whose sums lie SUM_STRIDE apart.
    __device__ __forceinline__ void store_gated(int token, const float* sums, int lane) const {
        float gates[8], ups[8];
        UNROLL for (int k = 0; k < 4; ++k) {
            const bool exists = existing(token + k) > 0;
            const float* of = sums + k * SUM_STRIDE + 2 * lane;
            const float2 gate = exists ? *(const float2*)of : make_float2(1.0f, 1.0f), up = *(const float2*)(of + STRIP_ROWS);
            gates[2 * k] = gate.x, gates[2 * k + 1] = gate.y, ups[2 * k] = up.x, ups[2 * k + 1] = up.y;
        }
        activate_rn<true>(gates);
        UNROLL for (int k = 0; k < 4; ++k) {
            const int exist = existing(token + k);
            u16 v[2], *to = at<u16>(token + k);
            UNROLL for (int e = 0; e < 2; ++e)
                v[e] = half_saturated(__fmul_rn(__fmul_rn(gates[2 * k + e], ups[2 * k + e]), INNER_SCALE));
            if (exist == 2 && (u64)to % 4 == 0) {
                *(u32*)to = v[0] | (u32)v[1] << 16;
            } else {
                UNROLL for (int e = 0; e < 2; ++e) {
                    if (e < exist) to[e] = v[e];
                }
            }
        }
    }
};

// Write a block's sums, 32 tokens at a time: all consumer warps store them in `memory`, then each writes whole rows of four tokens.
__device__ __forceinline__ void write(const Part& part, int n_rows, float scale, const Consumer& by, float* memory,
                                      const float (&d)[NT][4]) {
    const Outputs to = {part, part.strip * STRIP_ROWS + (MODE == GATED ? 2 : 4) * by.lane, n_rows, scale};
    UNROLL for (int first = 0; first < NT; first += 4) {
        const int token = part.token + 8 * first + 4 * by.warp;
        named_barrier_sync<1, 32 * WARPS>();  // what was there before was read
        UNROLL for (int i = 0; i < 4; ++i) {
            UNROLL for (int e = 0; e < 4; ++e)
                memory[(8 * i + by.lane % 4 * 2 + e % 2) * SUM_STRIDE + 16 * by.warp + by.lane / 4 + e / 2 * 8] = d[first + i][e];
        }
        named_barrier_sync<1, 32 * WARPS>();  // the sums are stored
        const float* sums = memory + 4 * by.warp * SUM_STRIDE;
        if constexpr (MODE == GATED) {
            to.store_gated(token, sums, by.lane);
        } else {
            UNROLL for (int k = 0; k < 4; ++k)
                to.store(token + k, *(const float4*)(sums + k * SUM_STRIDE + 4 * by.lane));
        }
    }
    named_barrier_sync<1, 32 * WARPS>();  // the sums were read
}

// Role of a consumer warp: a part of a weight of format `type`.
template <class Q, class... Others>
__device__ __forceinline__ void consume(int type, const Part& part, const Launch& of, const Passed& between, float scale,
                                        Tokens& tokens, Tiles& tiles, const u8* stages, float* exchanges, const Consumer& by) {
    if constexpr (sizeof...(Others) > 0) {
        if (type > 0) {
            if constexpr (MODE == GATED) stages += 4 * (Q::BYTES - Formats<Others...>::BYTES);  // behind the tiles of the gate
            consume<Others...>(type - 1, part, of, between, scale, tokens, tiles, stages, exchanges, by);
            return;
        }
    }
    float d[NT][4];
    if (part.continues) {
        between.take(d, by.warp, by.lane);
    } else {
        clear(d);
    }
    const int n = part.past_tile(of) - part.first_tile();
    multiply<Q>(tokens, tiles, stages + by.warp * Q::BYTES, by, n, d);
    if (part.goes_on) {
        between.give(d, by.warp, by.lane);
    } else {
        write(part, of.n_rows, scale, by, exchanges, d);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_packed(const __grid_constant__ TensorMap x, const unsigned long long* weights, int n_strips, int n_rows, int width,
               float scale, float* passed, int* there) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 shared[];
    __shared__ __align__(8) u64 barriers[2 * (X_STAGES + W_STAGES)];
    const u32 barrier = smem_address(barriers), start = smem_address(shared), aligned = (start + 1023) & ~1023u;
    u8* memory = shared + (aligned - start);
    Tokens tokens = {aligned, barrier, barrier + 8 * X_STAGES, 0, 0};
    Tiles tiles = {aligned + W_AT, barrier + 16 * X_STAGES, barrier + 16 * X_STAGES + 8 * W_STAGES, 0, 0};
    const int warp = threadIdx.x / 32, across = (n_rows + TOKENS - 1) / TOKENS;
    const Launch of = {(const Weight*)weights, n_strips * across, across, n_rows, width};

    if (threadIdx.x == 0) {
        for (int s = 0; s < X_STAGES; ++s)
            mbarrier_init(tokens.full + 8 * s, 1), mbarrier_init(tokens.empty + 8 * s, 2 * WARPGROUP_ARRIVALS);
        for (int s = 0; s < W_STAGES; ++s)
            mbarrier_init(tiles.full + 8 * s, 1), mbarrier_init(tiles.empty + 8 * s, WARPS * WARP_ARRIVALS);
    }
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised

    Share share(of);
    Part part;
    if (warp >= WARPS) {
        setmaxnreg_dec<56>();
        if (warp != WARPS) wait_on_dependent_grids();
        if (threadIdx.x % 32 == 0 && warp < WARPS + 2) {
            while (share.next(of, part)) {
                if (warp == WARPS) {
                    copy_tiles(tiles, part, of);
                } else {
                    copy_tokens(tokens, x, part, of);
                }
            }
        }
    } else {
        setmaxnreg_inc<224>();
        wait_on_dependent_grids();
        const Consumer by = {warp, (int)threadIdx.x % 32, memory + EXCHANGES_AT + warp * 2 * EXCHANGE_BYTES};
        const Passed between = {passed, there};
        while (share.next(of, part)) {
            const int type = MODE == GATED ? warp / 4 : (int)part.weight->type;
            consume<QUANTS>(type, part, of, between, scale, tokens, tiles, memory + W_AT, (float*)(memory + EXCHANGES_AT), by);
        }
    }
#endif
}
