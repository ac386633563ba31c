// Rows of the pass before that are text now: what they add to the state.
#pragma once

constexpr int KEPT_ROOM = 16;  // how many are fetched at a time

// Which rows those are, for a warp: up to 64, two of each lane.
struct Ids {
    int low, high;

    __device__ __forceinline__ void load(const int* kept) {
        low = kept[threadIdx.x % 32], high = kept[32 + threadIdx.x % 32];
    }
    // By all lanes.
    __device__ __forceinline__ int at(int i) const { return __shfl_sync(~0u, i & 32 ? high : low, i & 31); }
};

// Threads 0 to APPLIERS - 1 call these.
struct Kept {
    Ids rows;
    int n;
    const float *k, *u, *decay;  // of the slot's first pending row, this head and the block's first of OWN value rows
    float *lines, *factors;      // shared memory: KEPT_ROOM rows of WIDTH + OWN floats, and KEPT_ROOM floats

    // Start to copy KEPT_ROOM rows, or what there is.
    __device__ __forceinline__ void fetch(int start) const {
        const int n_here = min(KEPT_ROOM, n - start), x = threadIdx.x % 32 * 4;
#pragma unroll 1
        for (int r = threadIdx.x / 32; r < n_here; r += APPLIERS / 32) {
            const size_t row = rows.at(start + r);
            float* const line = lines + r * (WIDTH + OWN);
            if (x < WIDTH) cp_async_16(smem_address(line + x), k + row * GROUPS * WIDTH + x);
            if (x < OWN) cp_async_16(smem_address(line + WIDTH + x), u + row * HEADS * VALUES + x);
            if (x == 0) cp_async_4(smem_address(factors + r), decay + row * HEADS);
        }
        cp_async_commit_group();
    }

    // Apply all, of which the first are being fetched, to the state of a thread.
    __device__ __forceinline__ void apply(State& own, int lane) const {
        for (int start = 0; start < n; start += KEPT_ROOM) {
            if (start) fetch(start);
            cp_async_wait_group<0>();
            named_barrier_sync<1, APPLIERS>();
#pragma unroll 1
            for (int i = 0; i < min(KEPT_ROOM, n - start); ++i) {
                const float* const line = lines + i * (WIDTH + OWN);
                float key[COLUMNS];
                load_columns(line, lane, key);
                Amounts amount;
                amount.load(line + WIDTH + threadIdx.x / LANES * ROWS);
                own.add(factors[i], amount, key);
            }
            if (start + KEPT_ROOM < n) named_barrier_sync<1, APPLIERS>();
        }
    }
};
