// Multiply of decode_wide.cu: tiles of a warp, in a ring of shared memory, times all tokens, in a ring of the block.
//
// Macros: those of schedule.cuh; X_STAGES, W_STAGES and SMEM_BYTES, see decode_wide.cu.
#pragma once
#include "../../formats/mma_tile.cuh"
#include "../../gpu/include/wgmma.cuh"
#include "arrange.cuh"
#include "schedule.cuh"

#if !defined(X_STAGES) || !defined(W_STAGES) || !defined(SMEM_BYTES)
#error "X_STAGES, W_STAGES and SMEM_BYTES must be defined"
#endif

constexpr int TILE_PRODUCERS = 2;  // warps that copy tiles
constexpr int TOKEN_PARTS = 2;     // parts of the tokens, whose sums are scaled one after the other
constexpr int UNIT_STAGES = UNIT_COLUMNS / 64;
// The sums of as many units as may have stages at once are behind the stages.
constexpr int SUM_BYTES = TOKENS * 4 * All::MINIMA, SUM_STAGES = (X_STAGES + UNIT_STAGES - 1) / UNIT_STAGES;
constexpr int SUMS_AT = X_STAGES * BLOCK_BYTES, RINGS_AT = SUMS_AT + SUM_STAGES * SUM_BYTES;
constexpr int ASIDE_AT = RINGS_AT + WARPS * W_STAGES * All::BYTES;

// Barriers of a block, 8 bytes each, by the number of the first one: stages of tokens that are there or were read, tiles that
// are there or were read, what the epilogue needs is there, the block has arranged its tokens.
constexpr int STAGE_FULL = 0, STAGE_EMPTY = X_STAGES, TILE_FULL = 2 * X_STAGES, TILE_EMPTY = TILE_FULL + WARPS * W_STAGES,
              EPILOGUE = TILE_EMPTY + WARPS * W_STAGES, STARTED = EPILOGUE + 1, N_BARRIERS = STARTED + 1;

// Arrivals that end a phase of barrier `i`: of all consumer warps, of one warp, or of a thread.
__device__ __forceinline__ int arrivals_at(int i) {
    if (i >= STAGE_EMPTY && i < TILE_FULL) return WARPS * WARP_ARRIVALS;
    return i >= TILE_EMPTY && i <= EPILOGUE ? WARP_ARRIVALS : 1;
}

// Descriptor of an operand 16 * `by` bytes further on.
__device__ __forceinline__ u64 moved(u64 descriptor, int by) { return descriptor >> 32 << 32 | (u32)descriptor + by; }

// The ring of the tokens. A stage has 64 columns; with the last one of a unit come the sums of the unit's groups. The stages
// of a tile are those from `stage` on.
struct Pipe {
    u8* memory;
    u32 address, barriers;  // in shared memory
    int stage, phase, sum_stage;

    __device__ __forceinline__ int wraps(int ahead) const {
        return X_STAGES % UNIT_STAGES != 0 && stage + ahead >= X_STAGES;
    }
    __device__ __forceinline__ int stage_at(int ahead) const { return stage + ahead - wraps(ahead) * X_STAGES; }
    __device__ __forceinline__ u32 barrier(int first, int ahead) const { return barriers + 8 * (first + stage_at(ahead)); }
    // Wait for a stage; its columns as an operand of wgmma.
    __device__ __forceinline__ u64 wait(int ahead) const {
        mbarrier_wait(barrier(STAGE_FULL, ahead), phase ^ wraps(ahead));
        return columns(ahead);
    }
    __device__ __forceinline__ u64 columns(int ahead) const {
        return moved(wgmma_descriptor(address), stage_at(ahead) * (BLOCK_BYTES >> 4));
    }
    __device__ __forceinline__ const u8* sums() const { return memory + SUMS_AT + sum_stage * SUM_BYTES; }
    __device__ __forceinline__ u64 sums_operand() const {
        return moved(wgmma_descriptor_of_blocks(address + SUMS_AT, 128, 256), sum_stage * (SUM_BYTES >> 4));
    }
    // All lanes have read the stage.
    __device__ __forceinline__ void release(int ahead, int lane) const {
        __syncwarp();
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(barrier(STAGE_EMPTY, ahead));
    }
    __device__ __forceinline__ void advance(int stages) {
        stage += stages;
        if (stage >= X_STAGES) stage -= X_STAGES, phase ^= 1;
    }
    __device__ __forceinline__ void next_unit() {
        if (++sum_stage == SUM_STAGES) sum_stage = 0;
    }
};

// The tiles of a warp.
struct Ring {
    u8* memory;
    u32 barriers;  // those of the first stage
    int stage, phase;

    __device__ __forceinline__ const u8* wait() const {
        mbarrier_wait(barriers + 8 * (TILE_FULL + stage), phase);
        return memory + stage * All::BYTES;
    }
    // All lanes have read the tile.
    __device__ __forceinline__ void release(int lane) {
        __syncwarp();
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(barriers + 8 * (TILE_EMPTY + stage));
        if (++stage == W_STAGES) stage = 0, phase ^= 1;
    }
};

// Factors of the rows of a tile, and its minima as an A fragment.
template <class Q>
struct Factors {
    float upper, lower, upper_minimum, lower_minimum;
    u32 minima[4];

    __device__ __forceinline__ void load(const u8* tile, int lane) {
        upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
        if constexpr (MINIMA_AS_OPERAND<Q>) {
            u32 first[1], second[1];
            Q::minima(tile, lane / 4, lane % 4, first);
            Q::minima(tile, lane / 4 + 8, lane % 4, second);
            minima[0] = minima[2] = first[0], minima[1] = minima[3] = second[0];
            upper_minimum = __fmul_rn(Q::minimum_scale(tile, lane / 4), 4.0f);
            lower_minimum = __fmul_rn(Q::minimum_scale(tile, lane / 4 + 8), 4.0f);
        }
    }
};

// part = a tile's fragments of 32 columns, number j, times all tokens. `columns`: of the tokens' stage.
__device__ __forceinline__ void multiply_block(float (&part)[NT][4], const u32 (&a)[8], u64 columns, int j) {
    wgmma_fence_operand(part);
    wgmma_fence();
    wgmma_rs(part, a, moved(columns, j % 2 * 4), j > 0);
    wgmma_rs(part, a + 4, moved(columns, j % 2 * 4 + 2), 1);
    wgmma_commit_group();
}

// part = the minima of a tile times the sums of its groups.
template <class Q>
__device__ __forceinline__ void multiply_minima(float (&part)[NT][4], const Factors<Q>& of, const Pipe& pipe) {
    wgmma_fence_operand(part);
    wgmma_fence();
    wgmma_rs(part, of.minima, pipe.sums_operand(), 0);
    wgmma_commit_group();
}

__device__ __forceinline__ void add_products(float (&part)[NT][4], float upper, float lower, float (&total)[NT][4]) {
    wgmma_wait_group<0>();
    wgmma_fence_operand(part);
    UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], upper, lower);
}

// total += a tile of one group times all tokens.
template <class Q>
__device__ __forceinline__ void multiply_whole(const u8* tile, const Pipe& pipe, int lane, float (&total)[NT][4]) {
    constexpr int BLOCKS = Q::TILE_K / 32;
    float part[NT][4];
    u32 a[2][8];
    typename Q::Scales scales(tile, lane);
    Factors<Q> factors;
    factors.load(tile, lane);
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
        multiply_block(part, a[j % 2], j % 2 ? pipe.columns(j / 2) : pipe.wait(j / 2), j);
        wgmma_wait_group<1>();  // the fragments before these may be overwritten, and their columns
        if (j > 0 && j % 2 == 0) pipe.release(j / 2 - 1, lane);
    }
    add_products(part, factors.upper, factors.lower, total);
    if constexpr (MINIMA_AS_OPERAND<Q>) {
        multiply_minima(part, factors, pipe);
        add_products(part, factors.upper_minimum, factors.lower_minimum, total);
    } else if constexpr (Q::MINIMA > 0) {
        add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    }
}

// The same for groups of 16 or 32 columns, whose sums are scaled one by one. The sums of a part of the tokens are added while
// the next one is multiplied.
template <class Q>
__device__ __forceinline__ void multiply_groups(const u8* tile, const Pipe& pipe, int lane, float (&total)[NT][4]) {
    constexpr int OF_PART = NT / TOKEN_PARTS, AHEAD = TOKEN_PARTS - 1, OF_BLOCK = 32 / Q::GROUP * TOKEN_PARTS,
                  PRODUCTS = 8 * OF_BLOCK;
    static_assert(OF_PART * TOKEN_PARTS == NT && OF_PART % 2 == 0, "a part has whole operands");
    float part[TOKEN_PARTS][OF_PART][4], scaled[Q::GROUP == 16 ? NT : 1][4];
    u32 a[2][8];
    u64 b = 0;
    typename Q::Scales scales(tile, lane);
    if constexpr (Q::GROUP == 16) clear(scaled);
    UNROLL for (int i = 0; i < PRODUCTS + AHEAD; ++i) {
        const int at = i % TOKEN_PARTS, j = i / OF_BLOCK, m = i % OF_BLOCK / TOKEN_PARTS;
        if (i < PRODUCTS) {
            if (i % OF_BLOCK == 0) {
                warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
                b = j % 2 ? moved(pipe.columns(j / 2), 4) : pipe.wait(j / 2);
            }
            const u64 columns = moved(b, 2 * m + at * (OF_PART * 8 * 128 >> 4));
            wgmma_fence_operand(part[at]);
            wgmma_fence();
            wgmma_rs(part[at], a[j % 2] + 4 * m, columns, 0);
            if constexpr (Q::GROUP == 32) wgmma_rs(part[at], a[j % 2] + 4, moved(columns, 2), 1);
            wgmma_commit_group();
            wgmma_wait_group<AHEAD>();
        } else if (i == PRODUCTS) {
            wgmma_wait_group<0>();
        }
        const int done = i - AHEAD;
        if (done < 0) continue;
        if ((done + 1) % (2 * OF_BLOCK) == 0 && done + 1 < PRODUCTS) pipe.release(done / (2 * OF_BLOCK), lane);
        const int group = done / TOKEN_PARTS, of = done % TOKEN_PARTS, from = of * OF_PART;
        wgmma_fence_operand(part[of]);
        const float upper = scales.of(0, group), lower = scales.of(1, group);
        UNROLL for (int n = 0; n < OF_PART; ++n) {
            if constexpr (Q::GROUP == 16) {
                add_scaled(scaled[from + n], part[of][n], upper, lower);
            } else {
                add_scaled(total[from + n], part[of][n], upper, lower);
            }
        }
    }
    if constexpr (Q::GROUP == 16) {
        const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
        UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], scaled[n], upper, lower);
    }
    if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile, pipe.sums(), lane, total);
}

template <class Q>
__device__ __forceinline__ void multiply_item(const Item& item, Pipe& pipe, Ring& ring, int lane,
                                              float (&total)[NT][4]) {
    constexpr int TILES = UNIT_COLUMNS / Q::TILE_K, STAGES = Q::TILE_K / 64;
    const int n = (item.past - item.first) * TILES;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const u8* tile = ring.wait();
        if constexpr (Q::GROUP == Q::TILE_K) {
            multiply_whole<Q>(tile, pipe, lane, total);
        } else {
            multiply_groups<Q>(tile, pipe, lane, total);
        }
        ring.release(lane);
        pipe.release(STAGES - 1, lane);
        pipe.advance(STAGES);
        if (TILES == 1 || i % TILES == TILES - 1) pipe.next_unit();
    }
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Item& item, Pipe& pipe, Ring& ring, int lane,
                                             float (&total)[NT][4]) {
    if constexpr (sizeof...(Others) == 0) {
        multiply_item<Q>(item, pipe, ring, lane, total);
    } else if (type == 0) {
        multiply_item<Q>(item, pipe, ring, lane, total);
    } else {
        multiply_any<Others...>(type - 1, item, pipe, ring, lane, total);
    }
}
