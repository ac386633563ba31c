// Producers of decode_wide.cu, and the tokens, which all blocks arrange first.
//
// Macros: those of multiply.cuh.
#pragma once
#include "multiply.cuh"
#include "outputs.cuh"

// Bring the tokens into the layouts of all types that need one of their own. `made`: work that is shared out among warps.
struct Tokens {
    u8* units;
    int bytes, arranges;
};

template <class Q, class... Others>
__device__ __forceinline__ void arrange_all(const Tokens* tokens, const u16* x, int n_tokens, int width, int first, int step,
                                            int lane) {
    if (tokens->arranges) {
        for (int i = first; i < width / UNIT_COLUMNS * NT; i += step)
            arrange<Q>(x, n_tokens, width, i / NT, i % NT, tokens->units, lane);
    }
    if constexpr (sizeof...(Others) > 0) arrange_all<Others...>(tokens + 1, x, n_tokens, width, first, step, lane);
}

// Role of a producer thread: copy the tokens of all items.
__device__ __forceinline__ void produce(const Job& job, const Tokens (&tokens)[3], Pipe pipe) {
    Item item;
    Items items(job);
    while (items.next(job, item)) {
        const Tokens& own = item.type == 0 ? tokens[0] : item.type == 1 ? tokens[1] : tokens[2];
        const int sum_bytes = own.bytes - UNIT_STAGES * BLOCK_BYTES;
        for (int i = item.first; i < item.past; ++i) {
            const u8* unit = own.units + (size_t)i * own.bytes;
            UNROLL for (int h = 0; h < UNIT_STAGES; ++h) {
                const u32 full = pipe.barrier(STAGE_FULL, 0);
                mbarrier_wait(pipe.barrier(STAGE_EMPTY, 0), pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(full, BLOCK_BYTES + (h == UNIT_STAGES - 1 ? sum_bytes : 0));
                bulk_copy(pipe.address + pipe.stage * BLOCK_BYTES, unit + h * BLOCK_BYTES, BLOCK_BYTES, full);
                if (h == UNIT_STAGES - 1 && sum_bytes > 0) {
                    bulk_copy(pipe.address + SUMS_AT + pipe.sum_stage * SUM_BYTES, unit + UNIT_STAGES * BLOCK_BYTES, sum_bytes,
                              full);
                }
                pipe.advance(1);
            }
            pipe.next_unit();
        }
    }
}

// Role of a producer thread: copy the tiles of consumer warps `first`, `first + TILE_PRODUCERS` and so on. After the first one
// of each warp it waits until the block has arranged its tokens, which would queue behind all that was requested before them.
__device__ __forceinline__ void produce_tiles(const Job& job, const Pipe& pipe, int first) {
    int stage = 0, phase = 1;
    Item item;
    Items items(job);
    while (items.next(job, item)) {
        const int tile_k = All::tile_k(item.type), of_unit = UNIT_COLUMNS / tile_k, bytes = All::bytes(item.type);
        const size_t row_bytes = (size_t)job.units * of_unit * bytes;
        size_t at = (size_t)item.first * of_unit * bytes;
#pragma unroll 1
        for (int left = (item.past - item.first) * of_unit; left > 0; --left, at += bytes) {
#pragma unroll 4
            for (int warp = first; warp < WARPS; warp += TILE_PRODUCERS) {
                const u8* const tiles = MODE == GATED && warp >= GROUP_TILES ? item.second : item.tiles;
                const int slot = warp * W_STAGES + stage;
                const u32 full = pipe.barriers + 8 * (TILE_FULL + slot);
                mbarrier_wait(pipe.barriers + 8 * (TILE_EMPTY + slot), phase);
                mbarrier_arrive_expect_tx(full, bytes);
                asm volatile(
                    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
                    "%4;" ::"r"(pipe.address + RINGS_AT + slot * All::BYTES),
                    "l"(tiles + tile_of(item, warp) * row_bytes + at), "r"(bytes), "r"(full), "l"(EVICT_FIRST)
                    : "memory");
            }
            if (++stage == W_STAGES) stage = 0, phase ^= 1;
            mbarrier_wait(pipe.barriers + 8 * STARTED, 0);
        }
    }
}

// Blocks that have arranged their tokens, and threads that know that all have.
struct Arranged {
    static constexpr int BARRIER = 15;  // named barrier of the consumer warps
    int *ready, *known;

    __device__ __forceinline__ void announce() const {
        fence_async_proxy_all();  // the copies of other blocks see what this thread has stored
        named_barrier_sync<BARRIER, 32 * WARPS>();  // all consumer threads have stored their tokens
        if (threadIdx.x == 0) fence_gpu(), atomicAdd(ready, 1);
    }
    // By one thread, which then calls `reset` once.
    __device__ __forceinline__ void wait() const {
        wait_for_count(ready, gridDim.x);
        fence_async_proxy_all();
    }
    __device__ __forceinline__ void reset() const {
        constexpr int WAITING = NORM == INPUT_NORM ? 2 : 1;  // threads of a block
        if (atomicAdd(known, 1) == WAITING * gridDim.x - 1) *ready = 0, *known = 0;
    }
};
