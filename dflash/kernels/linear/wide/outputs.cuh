// Sums of decode_wide.cu: passed on to the next block, stored by slice, and added up to outputs.
//
// Macros: those of schedule.cuh; NORM, see epilogue.cuh; SUMS_IN_SMEM, see decode_wide.cu.
#pragma once
#include "../../gpu/include/clear.cuh"
#include "schedule.cuh"
#include "passed.cuh"

#if !defined(NORM) || !defined(SUMS_IN_SMEM)
#error "NORM and SUMS_IN_SMEM must be defined"
#endif
constexpr int SHARES = SLICES * SIDES;  // warps that have stored sums for a row tile
constexpr int OWN_SLICES = SLICES > 1 ? SLICES - 1 : 1;  // slices of a warp's row tile that it puts aside

// Slices whose end a block has while other blocks have others of their row tiles.
struct SharedSlices {
    Rows slices[2 * SLICES];
    int n;

    __device__ __forceinline__ void find(const Job& job) {
        n = 0;
        Item item;
        for (Items items(job); items.next(job, item);) {
            if (!item.whole && !item.goes_on) slices[n++] = item;
        }
    }
};
static_assert(2 * SLICES <= 32, "a lane waits for each");

// The slices of token tile `n` of a row tile, and their sum, from zero on and in order.
struct Slices {
    float4 parts[SLICES];

    __device__ __forceinline__ void load(const float* partials, int tile, int n, int lane) {
        const float* from = partials + ((size_t)tile * NT + n) * SLICES * 128 + 4 * lane;
        UNROLL for (int s = 0; s < SLICES; ++s) parts[s] = load_l2(from + 128 * s);
    }
    __device__ __forceinline__ float4 sum() const {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        UNROLL for (int s = 0; s < SLICES; ++s)
            sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
        return sum;
    }
};

__device__ __forceinline__ float4 four(const float (&v)[4]) { return make_float4(v[0], v[1], v[2], v[3]); }

// Outputs of the row tiles of a warp.
struct Outputs {
    const Epilogue& to;
    int n_tokens;
    float* partials;
    int* counts;
    int warp, lane;
    float* aside;  // shared memory, (WARPS, NT, OWN_SLICES, 128): sums of the warps that have all slices of a row tile

    __device__ __forceinline__ float* aside_at(int of_warp, int n, int slice) const {
        return aside + ((of_warp * NT + n) * OWN_SLICES + slice) * 128 + 4 * lane;
    }
    __device__ __forceinline__ int row_tile(const Rows& item) const { return item.first_tile + warp % GROUP_TILES; }
    __device__ __forceinline__ OutputTile tile_at(const Rows& item, int n) const {
        return {item.out, item.rows, item.stride, row_tile(item) * 16, 8 * n, n_tokens};
    }
    __device__ __forceinline__ float* partial_at(int tile, int n, int slice) const {
        return partials + (((size_t)tile * NT + n) * SLICES + slice) * 128 + 4 * lane;
    }
    __device__ __forceinline__ void write_tile(const Rows& item, int n, const EpilogueInputs<MODE, NORM>& loaded, float4 v,
                                               float4 up) const {
        write<MODE, NORM>(to, tile_at(item, n), loaded, lane, v, up);
    }
    // Write all tokens of a row tile. Inputs of several token tiles are loaded together, as each load takes about a microsecond.
    __device__ __forceinline__ void write_all(const Rows& item, const float (&total)[NT][4]) const {
        constexpr int TOGETHER = NT % 4 == 0 ? 4 : 2;
        UNROLL for (int first = 0; first < NT; first += TOGETHER) {
            EpilogueInputs<MODE, NORM> loaded[TOGETHER];
            UNROLL for (int i = 0; i < TOGETHER; ++i) loaded[i].load(to, tile_at(item, first + i), lane);
            UNROLL for (int i = 0; i < TOGETHER; ++i)
                write_tile(item, first + i, loaded[i], four(total[first + i]), four(total[first + i]));
        }
    }

    // Store the sums of a slice. The outputs are written if there is one slice, or if the warp has had all others.
    __device__ __forceinline__ void store(const Item& item, float (&total)[NT][4]) const {
        if (row_tile(item) >= item.row_tiles()) return;
        if constexpr (DIRECT) {
            write_all(item, total);
            return;
        }
        const int other = MODE == GATED ? item.row_tiles() : 0;  // tiles between a gate and its up projection
        const int tile = item.before + row_tile(item), own = tile + (warp >= GROUP_TILES ? other : 0);
        if (item.whole && item.slice == SLICES - 1) {
            add_own(item, total, own, MODE == GATED ? 2 * tile + other - own : own);
            return;
        }
        if (SUMS_IN_SMEM && item.whole) {
            UNROLL for (int n = 0; n < NT; ++n) *(float4*)aside_at(warp, n, item.slice) = four(total[n]);
            return;
        }
        UNROLL for (int n = 0; n < NT; ++n) {
            if (8 * n < n_tokens) *(float4*)partial_at(own, n, item.slice) = four(total[n]);
        }
    }

    // Count the slices that the warp has stored and wait for the others of these row tiles. Then add the slices: the warps
    // that have one of a row tile share its tokens. The last one that has waited resets the count.
    __device__ __forceinline__ void add_slices(const SharedSlices& shared) const {
        fence_gpu();  // the sums are visible before they are counted
        __syncwarp();
        // Each lane counts a slice and waits for its row tile, so that the waits run side by side.
        int* count = nullptr;
        int waited = 0;
        if (lane < shared.n && row_tile(shared.slices[lane]) < shared.slices[lane].row_tiles()) {
            count = counts + shared.slices[lane].before + row_tile(shared.slices[lane]);
            atomicAdd(count, 1);
            wait_for_count(count, SHARES);
            waited = atomicAdd(count, 1);
        }
        __syncwarp();  // the sums are read after they were counted
        for (int i = 0; i < shared.n; i += 2) {
            Share of[2];
            UNROLL for (int k = 0; k < 2; ++k) {
                if (i + k < shared.n) of[k].load(*this, shared.slices[i + k]);
            }
            UNROLL for (int k = 0; k < 2; ++k) {
                if (i + k < shared.n) of[k].write_sums(*this, shared.slices[i + k]);
            }
        }
        if (count && waited == 2 * SHARES - 1) *count = 0;
    }

    // Tokens of a row tile that a warp adds up. All loads are on their way together, as each takes about a microsecond.
    struct Share {
        static constexpr int EACH = (NT + SHARES - 1) / SHARES;
        Slices slices[EACH], ups[MODE == GATED ? EACH : 1];
        EpilogueInputs<MODE, NORM> inputs[EACH];
        int first, past;

        __device__ __forceinline__ void load(const Outputs& outputs, const Rows& item) {
            const int share = item.slice * SIDES + outputs.warp / GROUP_TILES, tile = item.before + outputs.row_tile(item);
            first = share * NT / SHARES, past = min((share + 1) * NT / SHARES, (outputs.n_tokens + 7) / 8);
            if (outputs.row_tile(item) >= item.row_tiles()) past = first;
            if (first >= past) return;
            UNROLL for (int i = 0; i < EACH; ++i) {
                const int n = min(first + i, past - 1);
                slices[i].load(outputs.partials, tile, n, outputs.lane);
                if constexpr (MODE == GATED) ups[i].load(outputs.partials, tile + item.row_tiles(), n, outputs.lane);
                inputs[i].load(outputs.to, outputs.tile_at(item, n), outputs.lane);
            }
        }
        __device__ __forceinline__ void write_sums(const Outputs& outputs, const Rows& item) const {
            UNROLL for (int i = 0; i < EACH; ++i) {
                if (first + i >= past) break;
                const float4 sum = slices[i].sum(), up = MODE == GATED ? ups[MODE == GATED ? i : 0].sum() : sum;
                outputs.write_tile(item, first + i, inputs[i], sum, up);
            }
        }
    };

    // Add the slices that this warp has stored before, then its latest. With GATED the warps of a gate and of its up
    // projection (`partner`) exchange half of their sums, and each writes half of the outputs.
    __device__ __forceinline__ void add_own(const Item& item, float (&total)[NT][4], int own, int partner) const {
        UNROLL for (int n = 0; n < NT; ++n) {
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            UNROLL for (int s = 0; s < SLICES - 1; ++s) {
                const float4 v = SUMS_IN_SMEM ? *(const float4*)aside_at(warp, n, s) : load_l2(partial_at(own, n, s));
                sum[0] += v.x, sum[1] += v.y, sum[2] += v.z, sum[3] += v.w;
            }
            UNROLL for (int e = 0; e < 4; ++e) total[n][e] = __fadd_rn(sum[e], total[n][e]);
        }
        constexpr int HALF = MODE == GATED ? NT / 2 : NT;
        if constexpr (MODE == GATED) {
            const bool upper = warp >= GROUP_TILES;
            UNROLL for (int n = 0; n < HALF; ++n) {
                const int m = upper ? n : HALF + n;
                float* const to_other = SUMS_IN_SMEM ? aside_at(warp, m, 0) : partial_at(own, m, 0);
                *(float4*)to_other = upper ? four(total[n]) : four(total[HALF + n]);
            }
            named_barrier_sync<64>(1 + warp % GROUP_TILES);  // the sums of the other warp are stored
            UNROLL for (int n = 0; n < HALF; ++n) {
                const int m = upper ? HALF + n : n;
                const EpilogueInputs<MODE, NORM> none = {};
                const float4 mine = upper ? four(total[HALF + n]) : four(total[n]);
                const float4 its = SUMS_IN_SMEM ? *(const float4*)aside_at(upper ? warp - GROUP_TILES : warp + GROUP_TILES, m, 0)
                                                : load_l2(partial_at(partner, m, 0));
                write_tile(item, m, none, upper ? its : mine, upper ? mine : its);
            }
            named_barrier_sync<64>(1 + warp % GROUP_TILES);  // the sums were read before the next ones are stored
        } else {
            write_all(item, total);
        }
    }
};
