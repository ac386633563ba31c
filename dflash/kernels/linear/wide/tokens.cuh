// Tokens of decode_wide.cu: all blocks arrange them, then a thread of each block copies them to its ring.
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

// Role of the producer thread: copy the tokens of all items.
__device__ __forceinline__ void produce(const Job& job, const Tokens (&tokens)[3], Pipe pipe) {
    Item item;
    Items items(job);
    while (items.next(job, item)) {
        const Tokens& own = item.type == 0 ? tokens[0] : item.type == 1 ? tokens[1] : tokens[2];
        const int sum_bytes = own.bytes - UNIT_STAGES * BLOCK_BYTES;
        for (int i = item.first; i < item.past; ++i) {
            const u8* unit = own.units + (size_t)i * own.bytes;
            UNROLL for (int h = 0; h < UNIT_STAGES; ++h) {
                const u32 barrier = pipe.full + 8 * pipe.stage;
                mbarrier_wait(pipe.empty + 8 * pipe.stage, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(barrier, BLOCK_BYTES + (h == UNIT_STAGES - 1 ? sum_bytes : 0));
                bulk_copy(pipe.address + pipe.stage * BLOCK_BYTES, unit + h * BLOCK_BYTES, BLOCK_BYTES, barrier);
                if (h == UNIT_STAGES - 1 && sum_bytes > 0) {
                    bulk_copy(pipe.address + SUMS_AT + pipe.sum_stage * SUM_BYTES, unit + UNIT_STAGES * BLOCK_BYTES, sum_bytes,
                              barrier);
                }
                pipe.next();
            }
            pipe.next_unit();
        }
    }
}

// Blocks that have arranged their tokens, and blocks that know that all have.
struct Arranged {
    int *ready, *known;

    __device__ __forceinline__ void announce() const {
        fence_async_proxy_all();  // the copies of other blocks see what this thread has stored
        __syncthreads();          // all threads have stored their tokens
        if (threadIdx.x == 0) fence_gpu(), atomicAdd(ready, 1);
    }
    // By one thread.
    __device__ __forceinline__ void wait() const {
        wait_for_count(ready, gridDim.x);
        fence_gpu();
        fence_async_proxy_all();
        if (atomicAdd(known, 1) == gridDim.x - 1) *ready = 0, *known = 0;
    }
};
