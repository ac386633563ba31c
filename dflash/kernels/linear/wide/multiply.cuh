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

// Two warpgroups take turns: one unpacks a whole tile and adds its sums while the tensor cores work for the other. Three
// warpgroups are faster without turns, and have registers for two blocks of 32 columns only.
constexpr bool IN_TURN = WARPS == 8;
constexpr int TOKEN_PARTS = 2;  // parts of the tokens, whose sums are scaled one after the other
constexpr int UNIT_STAGES = UNIT_COLUMNS / 64;
// The sums of as many units as may have stages at once are behind the stages.
constexpr int SUM_BYTES = TOKENS * 4 * All::MINIMA, SUM_STAGES = (X_STAGES + UNIT_STAGES - 1) / UNIT_STAGES;
constexpr int SUMS_AT = X_STAGES * BLOCK_BYTES, RINGS_AT = SUMS_AT + SUM_STAGES * SUM_BYTES;
constexpr int ASIDE_AT = RINGS_AT + WARPS * W_STAGES * All::BYTES;

// The ring of the tokens. A stage has 64 columns; with the last one of a unit come the sums of the unit's groups.
struct Pipe {
    u8* memory;
    u32 address, full, empty;
    int stage, phase, sum_stage;

    __device__ __forceinline__ u32 wait() const {
        mbarrier_wait(full + 8 * stage, phase);
        return address + stage * BLOCK_BYTES;
    }
    __device__ __forceinline__ const u8* sums() const { return memory + SUMS_AT + sum_stage * SUM_BYTES; }
    __device__ __forceinline__ u32 sums_address() const { return address + SUMS_AT + sum_stage * SUM_BYTES; }
    // All lanes have read the stage.
    __device__ __forceinline__ void release(int lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
        next();
    }
    __device__ __forceinline__ void next() {
        if (++stage == X_STAGES) stage = 0, phase ^= 1;
    }
    __device__ __forceinline__ void next_unit() {
        if (++sum_stage == SUM_STAGES) sum_stage = 0;
    }
};

// With IN_TURN the warpgroups issue the products of a tile one after another.
struct Turns {
    u32 own, next;  // barriers of this warpgroup and of the one after it: a phase ends when it is the turn of the warpgroup
    int phase;

    __device__ __forceinline__ Turns(u32 barriers, int warp)
        : own(barriers + warp / 4 * 8), next(barriers + (warp / 4 + 1) % (WARPS / 4) * 8), phase(warp < 4) {}
    __device__ __forceinline__ void wait() const {
        if (IN_TURN) mbarrier_wait(own, phase);
    }
    // The warpgroup has issued its products.
    __device__ __forceinline__ void pass(int lane) {
        if (IN_TURN && lane == 0) mbarrier_arrive(next);
        phase ^= 1;
    }
};

struct Ring {
    u8* memory;
    u32 address, barrier;
    int stage, phase;
};

// Descriptor of the tokens of 32-column block `block` of a tile, which is half of a stage. `earlier`: the stage of the block
// before is still being read.
__device__ __forceinline__ u64 columns_of(const Pipe& pipe, int block, bool earlier) {
    Pipe at = pipe;
    if (earlier) at.next();
    return wgmma_descriptor(block % 2 ? at.address + at.stage * BLOCK_BYTES + 64 : at.wait());
}

// Minima of a tile as an A fragment, and their factors.
template <class Q>
struct Minima {
    u32 a[4];
    float upper, lower;

    __device__ __forceinline__ Minima(const u8* tile, int lane) {
        if constexpr (MINIMA_AS_OPERAND<Q>) {
            u32 first[1], second[1];
            Q::minima(tile, lane / 4, lane % 4, first);
            Q::minima(tile, lane / 4 + 8, lane % 4, second);
            a[0] = a[2] = first[0], a[1] = a[3] = second[0];
            upper = __fmul_rn(Q::minimum_scale(tile, lane / 4), 4.0f);
            lower = __fmul_rn(Q::minimum_scale(tile, lane / 4 + 8), 4.0f);
        }
    }
};

// total += a tile of one group times all tokens.
template <class Q>
__device__ __forceinline__ void multiply_whole(const u8* tile, Pipe& pipe, Turns& turns, int lane, float (&total)[NT][4]) {
    constexpr int BLOCKS = Q::TILE_K / 32, FRAGMENTS = IN_TURN ? BLOCKS : 2;
    float part[NT][4];
    u32 a[FRAGMENTS][8];
    typename Q::Scales scales(tile, lane);
    const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
    const Minima<Q> minima(tile, lane);
    if constexpr (IN_TURN) {
        UNROLL for (int j = 0; j < BLOCKS; ++j) warp_fragment<Q>(tile, scales, j, lane, a[j]);
    }
    turns.wait();
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        if constexpr (!IN_TURN) warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
        const bool next_stage = j > 0 && j % 2 == 0;
        const u64 b = columns_of(pipe, j, next_stage);
        wgmma_fence_operand(part);
        wgmma_fence();
        wgmma_rs(part, a[j % FRAGMENTS], b, j > 0);
        wgmma_rs(part, a[j % FRAGMENTS] + 4, b + 2, 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the fragments before these may be overwritten, and their columns
        if (next_stage) pipe.release(lane);
    }
    turns.pass(lane);
    wgmma_wait_group<0>();
    wgmma_fence_operand(part);
    UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], upper, lower);
    if constexpr (MINIMA_AS_OPERAND<Q>) {
        wgmma_fence_operand(part);
        wgmma_fence();
        wgmma_rs(part, minima.a, wgmma_descriptor_of_blocks(pipe.sums_address(), 128, 256), 0);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        wgmma_fence_operand(part);
        UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], minima.upper, minima.lower);
    } else if constexpr (Q::MINIMA > 0) {
        add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    }
    pipe.release(lane);
}

// The same for groups of 16 or 32 columns, whose sums are scaled one by one. The sums of a part of the tokens are added while
// the next one is multiplied.
template <class Q>
__device__ __forceinline__ void multiply_groups(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
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
                b = columns_of(pipe, j, j > 0 && j % 2 == 0);
            }
            const u64 columns = b + 2 * m + at * (OF_PART * 8 * 128 >> 4);
            wgmma_fence_operand(part[at]);
            wgmma_fence();
            wgmma_rs(part[at], a[j % 2] + 4 * m, columns, 0);
            if constexpr (Q::GROUP == 32) wgmma_rs(part[at], a[j % 2] + 4, columns + 2, 1);
            wgmma_commit_group();
            wgmma_wait_group<AHEAD>();
        } else if (i == PRODUCTS) {
            wgmma_wait_group<0>();
        }
        const int done = i - AHEAD;
        if (done < 0) continue;
        if ((done + 1) % (2 * OF_BLOCK) == 0 && done + 1 < PRODUCTS) pipe.release(lane);
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
    pipe.release(lane);
}

template <class Q>
__device__ __forceinline__ void multiply_item(const Job& job, const Item& item, Pipe& pipe, Turns& turns, Ring& ring,
                                              TileCursor& cursor, int warp, int lane, float (&total)[NT][4]) {
    constexpr int TILES = UNIT_COLUMNS / Q::TILE_K;
    const int n = (item.past - item.first) * TILES;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        mbarrier_wait(ring.barrier + 8 * ring.stage, ring.phase);
        const u8* tile = ring.memory + ring.stage * All::BYTES;
        if constexpr (Q::GROUP == Q::TILE_K) {
            multiply_whole<Q>(tile, pipe, turns, lane, total);
        } else {
            multiply_groups<Q>(tile, pipe, lane, total);
        }
        if (TILES == 1 || i % TILES == TILES - 1) pipe.next_unit();
        cursor.fetch(job, warp, ring.address + ring.stage * All::BYTES, ring.barrier + 8 * ring.stage);
        if (++ring.stage == W_STAGES) ring.stage = 0, ring.phase ^= 1;
    }
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Job& job, const Item& item, Pipe& pipe, Turns& turns,
                                             Ring& ring, TileCursor& cursor, int warp, int lane, float (&total)[NT][4]) {
    if constexpr (sizeof...(Others) == 0) {
        multiply_item<Q>(job, item, pipe, turns, ring, cursor, warp, lane, total);
    } else if (type == 0) {
        multiply_item<Q>(job, item, pipe, turns, ring, cursor, warp, lane, total);
    } else {
        multiply_any<Others...>(type - 1, job, item, pipe, turns, ring, cursor, warp, lane, total);
    }
}
