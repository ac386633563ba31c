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

constexpr int UNIT_STAGES = UNIT_COLUMNS / 64;
// The sums of as many units as may have stages at once are behind the stages.
constexpr int SUM_BYTES = TOKENS * 4 * All::MINIMA, SUM_STAGES = (X_STAGES + UNIT_STAGES - 1) / UNIT_STAGES;
constexpr int SUMS_AT = X_STAGES * BLOCK_BYTES, RINGS_AT = SUMS_AT + SUM_STAGES * SUM_BYTES;
static_assert(1024 + RINGS_AT + WARPS * W_STAGES * All::BYTES <= SMEM_BYTES, "SMEM_BYTES must hold all stages");

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

// total += a tile of one group times all tokens.
template <class Q>
__device__ __forceinline__ void multiply_whole(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
    float part[NT][4];
    u32 a[2][8];
    typename Q::Scales scales(tile, lane);
    UNROLL for (int j = 0; j < Q::TILE_K / 32; ++j) {
        warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
        const bool next_stage = j > 0 && j % 2 == 0;
        const u64 b = columns_of(pipe, j, next_stage);
        wgmma_fence_operand(part);
        wgmma_fence();
        wgmma_rs(part, a[j % 2], b, j > 0);
        wgmma_rs(part, a[j % 2] + 4, b + 2, 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the fragments before these may be overwritten, and their columns
        if (next_stage) pipe.release(lane);
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(part);
    const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
    UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], upper, lower);
    if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    pipe.release(lane);
}

// The same for groups of 16 or 32 columns, whose sums are scaled one by one. Half of the tokens are multiplied while the sums
// of the other half are added.
template <class Q>
__device__ __forceinline__ void multiply_groups(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
    constexpr int HALF = NT / 2, OF_BLOCK = 32 / Q::GROUP, PRODUCTS = 16 * OF_BLOCK;
    float part[2][HALF][4], scaled[Q::GROUP == 16 ? NT : 1][4];
    u32 a[2][8];
    u64 b = 0;
    typename Q::Scales scales(tile, lane);
    if constexpr (Q::GROUP == 16) clear(scaled);
    UNROLL for (int i = 0; i <= PRODUCTS; ++i) {
        const int half = i % 2, group = i / 2, j = group / OF_BLOCK, m = group % OF_BLOCK;
        const bool next_stage = i > 0 && i < PRODUCTS && i % (4 * OF_BLOCK) == 0;
        if (i < PRODUCTS) {
            if (i % (2 * OF_BLOCK) == 0) {
                warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
                b = columns_of(pipe, j, next_stage);
            }
            const u64 columns = b + 2 * m + half * (HALF * 8 * 128 >> 4);
            wgmma_fence_operand(part[half]);
            wgmma_fence();
            wgmma_rs(part[half], a[j % 2] + 4 * m, columns, 0);
            if constexpr (Q::GROUP == 32) wgmma_rs(part[half], a[j % 2] + 4, columns + 2, 1);
            wgmma_commit_group();
            wgmma_wait_group<1>();
        } else {
            wgmma_wait_group<0>();
        }
        if (next_stage) pipe.release(lane);
        if (i == 0) continue;
        const int done = i - 1, of = done / 2, from = done % 2 * HALF;
        wgmma_fence_operand(part[done % 2]);
        const float upper = scales.of(0, of), lower = scales.of(1, of);
        UNROLL for (int n = 0; n < HALF; ++n) {
            if constexpr (Q::GROUP == 16) {
                add_scaled(scaled[from + n], part[done % 2][n], upper, lower);
            } else {
                add_scaled(total[from + n], part[done % 2][n], upper, lower);
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
__device__ __forceinline__ void multiply_item(const Job& job, const Item& item, Pipe& pipe, Ring& ring, TileCursor& cursor,
                                              int warp, int lane, float (&total)[NT][4]) {
    constexpr int TILES = UNIT_COLUMNS / Q::TILE_K;
    const int n = (item.past - item.first) * TILES;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        mbarrier_wait(ring.barrier + 8 * ring.stage, ring.phase);
        const u8* tile = ring.memory + ring.stage * All::BYTES;
        if constexpr (Q::GROUP == Q::TILE_K) {
            multiply_whole<Q>(tile, pipe, lane, total);
        } else {
            multiply_groups<Q>(tile, pipe, lane, total);
        }
        if (TILES == 1 || i % TILES == TILES - 1) pipe.next_unit();
        cursor.fetch(job, warp, ring.address + ring.stage * All::BYTES, ring.barrier + 8 * ring.stage);
        if (++ring.stage == W_STAGES) ring.stage = 0, ring.phase ^= 1;
    }
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Job& job, const Item& item, Pipe& pipe, Ring& ring,
                                             TileCursor& cursor, int warp, int lane, float (&total)[NT][4]) {
    if constexpr (sizeof...(Others) == 0) {
        multiply_item<Q>(job, item, pipe, ring, cursor, warp, lane, total);
    } else if (type == 0) {
        multiply_item<Q>(job, item, pipe, ring, cursor, warp, lane, total);
    } else {
        multiply_any<Others...>(type - 1, job, item, pipe, ring, cursor, warp, lane, total);
    }
}
