// Sums of decode_wide.cu: passed on to the next block, stored by slice, and added up to outputs.
//
// Macros: those of schedule.cuh, and NORM, see epilogue.cuh.
#pragma once
#include "../../gpu/include/clear.cuh"
#include "schedule.cuh"
#include "wait.cuh"

#ifndef NORM
#error "NORM must be defined"
#endif

__device__ __forceinline__ float4 load_l2(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ float4 four(const float (&v)[4]) { return make_float4(v[0], v[1], v[2], v[3]); }

// Sums of a warp that the next block goes on with, and whether they are there.
struct Passed {
    float* sums;  // (blocks, WARPS, ROW_TILES, NT, 128)
    int* there;   // (blocks, WARPS)

    __device__ __forceinline__ float* sums_at(size_t at, int m, int n, int lane) const {
        return sums + ((at * ROW_TILES + m) * NT + n) * 128 + 4 * lane;
    }
    __device__ __forceinline__ void give(const float (&total)[ROW_TILES][NT][4], int warp, int lane) const {
        const size_t at = (size_t)blockIdx.x * WARPS + warp;
        UNROLL for (int m = 0; m < ROW_TILES; ++m) {
            UNROLL for (int n = 0; n < NT; ++n) *(float4*)sums_at(at, m, n, lane) = four(total[m][n]);
        }
        fence_gpu();  // the sums are visible before they are announced
        __syncwarp();
        if (lane == 0) atomicExch(there + at, 1);
    }
    __device__ __forceinline__ void take(float (&total)[ROW_TILES][NT][4], int warp, int lane) const {
        const size_t at = (size_t)(blockIdx.x - 1) * WARPS + warp;
        if (lane == 0) {
            wait_for_count(there + at, 1);
            there[at] = 0;
        }
        __syncwarp();
        fence_gpu();  // the sums are read after they were announced
        UNROLL for (int m = 0; m < ROW_TILES; ++m) {
            UNROLL for (int n = 0; n < NT; ++n) {
                const float4 v = load_l2(sums_at(at, m, n, lane));
                total[m][n][0] = v.x, total[m][n][1] = v.y, total[m][n][2] = v.z, total[m][n][3] = v.w;
            }
        }
    }
};

// Outputs of the row tiles of a warp.
struct Outputs {
    const Epilogue& to;
    int n_tokens;
    float* partials;
    int* counts;
    int warp, lane;

    // Whether the warp has the end of a slice of rows that exist.
    __device__ __forceinline__ bool ends(const Item& item, int m) const {
        return !item.goes_on && row_tile(item, warp, m) < item.row_tiles();
    }
    // Write eight tokens, number `n`, of a row tile.
    __device__ __forceinline__ void write_tile(const Item& item, int row_tile, int n, float4 v, float4 up) const {
        const OutputTile at = {item.out, item.rows, item.stride, row_tile * 16, 8 * n, n_tokens};
        EpilogueInputs<MODE, NORM> loaded;
        loaded.load(to, at, lane);
        write<MODE, NORM>(to, at, loaded, lane, v, up);
    }

    // Store the sums of a slice, or write the outputs if there is one slice.
    __device__ __forceinline__ void store(const Item& item, const float (&total)[ROW_TILES][NT][4]) const {
        UNROLL for (int m = 0; m < ROW_TILES; ++m) {
            if (!ends(item, m)) continue;
            const int own = row_tile(item, warp, m), up = MODE == GATED && warp >= SIDE_WARPS ? item.row_tiles() : 0;
            float* to_partials = partials + (((size_t)item.before + own + up) * NT * SLICES + item.slice) * 128 + 4 * lane;
            UNROLL for (int n = 0; n < NT; ++n) {
                if (8 * n >= n_tokens) break;
                if constexpr (DIRECT) {
                    write_tile(item, own, n, four(total[m][n]), four(total[m][n]));
                } else {
                    *(float4*)(to_partials + n * SLICES * 128) = four(total[m][n]);
                }
            }
        }
    }

    // The slices of token tile `n` of a row tile, added from zero on and in order.
    __device__ __forceinline__ float4 sum_slices(int tile, int n) const {
        const float* from = partials + ((size_t)tile * NT + n) * SLICES * 128 + 4 * lane;
        float4 parts[SLICES], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        UNROLL for (int s = 0; s < SLICES; ++s) parts[s] = load_l2(from + 128 * s);
        UNROLL for (int s = 0; s < SLICES; ++s)
            sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
        return sum;
    }

    // Call `action(item, m)` for each slice and row tile whose end the warp has, in the order in which they were stored.
    template <class Action>
    __device__ __forceinline__ void for_each_end(const Job& job, const Action& action) const {
        Item item;
        for (Items items(job); items.next(job, item);) {
#pragma unroll 1
            for (int m = 0; m < ROW_TILES; ++m) {
                if (ends(item, m)) action(item, row_tile(item, warp, m));
            }
        }
    }

    // Count the slices that the warp has stored and wait for the others of these row tiles. Then add the slices: the warps
    // that have one of a row tile share its tokens. The last one that is done resets the count.
    __device__ __forceinline__ void add_slices(const Job& job) const {
        constexpr int SHARES = SLICES * SIDES, EACH = (NT + SHARES - 1) / SHARES;
        fence_gpu();  // the sums are visible before they are counted
        __syncwarp();
        for_each_end(job, [&](const Item& item, int own) {
            if (lane == 0) atomicAdd(counts + item.before + own, 1);
        });
        // Each lane waits for a row tile, so that the waits run side by side.
        int* count = nullptr;
        int n_ends = 0;
        for_each_end(job, [&](const Item& item, int own) {
            if (lane == n_ends++ % 32) {
                if (count) wait_for_count(count, SHARES);
                count = counts + item.before + own;
            }
        });
        if (count) wait_for_count(count, SHARES);
        __syncwarp();
        fence_gpu();  // the sums are read after they were counted
        for_each_end(job, [&](const Item& item, int own) {
            const int tile = item.before + own, up = MODE == GATED ? item.row_tiles() : 0;
            const int share = item.slice * SIDES + warp / SIDE_WARPS, past = (share + 1) * NT / SHARES;
            UNROLL for (int i = 0; i < EACH; ++i) {
                const int n = share * NT / SHARES + i;
                if (n >= past || 8 * n >= n_tokens) break;
                const float4 sum = sum_slices(tile, n);
                write_tile(item, own, n, sum, MODE == GATED ? sum_slices(tile + up, n) : sum);
            }
        });
        __syncwarp();  // all lanes have read the sums
        n_ends = 0;
        for_each_end(job, [&](const Item& item, int own) {
            int* at = counts + item.before + own;
            if (lane == n_ends++ % 32 && atomicAdd(at, 1) == 2 * SHARES - 1) *at = 0;
        });
    }
};
