// Multiply of a short prefill on Hopper, from packed tiles: out = x @ W.T. It multiplies the float16 values that unpack.cu
// writes for prefill_hopper.cu, in the same order, so the results have the same bits.
//
// A block computes 128 tokens by 64 rows of W in steps of 64 columns. Roles: one producer thread copies tokens with TMA into
// a pipeline; another one copies packed tiles into a second pipeline. Sixteen warps unpack the tiles, eight warps a step,
// each 16 rows by 32 columns. Two consumer warpgroups multiply 64 tokens each. W is unpacked again for every 128 tokens, so
// this kernel is for few tokens.
//
// Launches that write different `out` may run at once. The first one (`leads`) waits for earlier kernels before it lets the
// next one start. The next one need not wait before it writes.
//
// Grid (tiles of tokens, strips of 64 rows of all matrices), block 832, shared memory 1024 + STAGES * STAGE_BYTES +
// PACKED_STAGES * PACKED_STAGE_BYTES.
// Macros: QUANT, the format; MODE as in prefill.cu; with GATED a strip is 32 rows of the gate and 32 of the up projection.
// Bytes: the tiles once for each 128 tokens, x once for each 64 rows of W.
#include "../formats/fragment_rows.cuh"
#include "../formats/halves.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill_epilogue.cuh"

#if !defined(QUANT) || !defined(MODE)
#error "QUANT and MODE must be defined"
#endif

using Q = QUANT;
constexpr int TILE_M = 128, TILE_N = 64, TILE_K = 64, STAGES = 6, PACKED_STAGES = 4, UNPACK_WARPS = 16, THREADS = 832;
constexpr int X_BYTES = TILE_M * TILE_K * 2, STAGE_BYTES = X_BYTES + TILE_N * TILE_K * 2, PACKED_STAGE_BYTES = 4 * Q::BYTES;
constexpr int STEPS = Q::TILE_K / TILE_K;  // steps in a packed tile
static_assert(STEPS == 1 || STEPS % 2 == 0, "an unpack warp takes every other step, or every other tile");

using Pipeline = PipelineState<STAGES, STAGE_BYTES>;
using PackedPipeline = PipelineState<PACKED_STAGES, PACKED_STAGE_BYTES>;

// The four row tiles of 16 rows in a strip.
struct Rows {
    const u8* tiles[2];  // the matrix, or the gate and the up projection
    int first, last;     // first row tile of the strip, last one of the matrix
    size_t bytes;        // bytes of a row of tiles

    __device__ const u8* of(int q) const {
        const int tile = first + (MODE == GATED ? q % 2 : q);
        return (MODE == GATED && q >= 2 ? tiles[1] : tiles[0]) + min(tile, last) * bytes;
    }
};

// Producer: copy the packed tiles of a strip.
__device__ __forceinline__ void copy_tiles(PackedPipeline& packed, const Rows& rows, int steps) {
    for (int i = 0; i * STEPS < steps; ++i) {
        mbarrier_wait(packed.empty_barrier(), packed.phase ^ 1);
        mbarrier_arrive_expect_tx(packed.full_barrier(), PACKED_STAGE_BYTES);
        UNROLL for (int q = 0; q < 4; ++q) {
            bulk_copy(packed.tile() + q * Q::BYTES, rows.of(q) + (size_t)i * Q::BYTES, Q::BYTES, packed.full_barrier());
        }
        packed.next();
    }
}

// Role of unpack warp `u`: unpack 16 rows by 32 columns of every other step (or of every other tile, if a tile is one step).
__device__ __forceinline__ void unpack(Pipeline& pipeline, PackedPipeline& packed, const u8* memory, int u, int steps) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, q = u % 4, part = u / 4 % 2, parity = u / 8;
    u32 to[2];
    UNROLL for (int r = 0; r < 2; ++r) {
        const int row = g + 8 * r,
                  at = MODE == GATED ? paired_fragment_row(q % 2 * 16 + row, q / 2) : fragment_row(q * 16 + row);
        to[r] = X_BYTES + at * 128 + ((4 * part + lane_octet<Q>(t)) ^ at % 8) * 16;
    }
    for (int i = 0; i * STEPS < steps; ++i) {
        const bool mine = STEPS > 1 || i % 2 == parity;
        if (mine) mbarrier_wait(packed.full_barrier(), packed.phase);
        const u8* tile = memory + packed.stage * PACKED_STAGE_BYTES + q * Q::BYTES;
        UNROLL for (int s = 0; s < STEPS; ++s) {
            if (i * STEPS + s >= steps) break;
            if (STEPS > 1 ? s % 2 == parity : mine) {
                uint4 lines[2];
                UNROLL for (int r = 0; r < 2; ++r) lines[r] = eight_halves<Q>(tile, g + 8 * r, 2 * s + part, t);
                mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
                st_shared_16(pipeline.tile() + to[0], lines[0]);
                st_shared_16(pipeline.tile() + to[1], lines[1]);
                fence_async_proxy();  // wgmma reads the lines through the async proxy
                __syncwarp();  // one lane arrives for all
                if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(pipeline.full_barrier());
            }
            pipeline.next();
        }
        __syncwarp();
        if (mine && (EVERY_LANE_ARRIVES || lane == 0)) mbarrier_arrive(packed.empty_barrier());
        packed.next();
    }
}

// Producer: copy 64 * groups tokens from `row` on.
__device__ __forceinline__ void copy_tokens(Pipeline& pipeline, const TensorMap& x, int row, int groups, int steps) {
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
        mbarrier_arrive_expect_tx(pipeline.full_barrier(), groups * (X_BYTES / 2));
        for (int i = 0; i < groups; ++i) {
            tma_load_2d(pipeline.tile() + i * (X_BYTES / 2), x, step * TILE_K, row + i * (TILE_M / 2),
                        pipeline.full_barrier());
        }
        pipeline.next();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_packed(const __grid_constant__ TensorMap x, const unsigned long long* tiles, const unsigned long long* parts,
               int n_parts, int n_rows, int width, int tiles_of_row, float scale, int leads) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * (STAGES + PACKED_STAGES)];
    const u32 barrier = smem_address(barriers), start = smem_address(memory);
    const u32 aligned = (start + 1023) & ~1023u;
    Pipeline pipeline = {aligned, barrier, barrier + 8 * STAGES, 0, 0};
    PackedPipeline packed = {aligned + STAGES * STAGE_BYTES, barrier + 16 * STAGES,
                             barrier + 16 * STAGES + 8 * PACKED_STAGES, 0, 0};
    const int warp = threadIdx.x / 32, first_row = blockIdx.x * TILE_M, column = blockIdx.y * TILE_N;
    const int groups = n_rows - first_row > TILE_M / 2 ? 2 : 1, steps = (width + TILE_K - 1) / TILE_K;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(pipeline.full + 8 * s, 1 + UNPACK_WARPS / 2 * WARP_ARRIVALS);
            mbarrier_init(pipeline.empty + 8 * s, groups * WARPGROUP_ARRIVALS);
        }
        for (int s = 0; s < PACKED_STAGES; ++s) {
            mbarrier_init(packed.full + 8 * s, 1);
            mbarrier_init(packed.empty + 8 * s, (STEPS > 1 ? UNPACK_WARPS : UNPACK_WARPS / 2) * WARP_ARRIVALS);
        }
    }
    __syncthreads();

    OutputCursor cursor(parts, n_parts);
    cursor.move(column);
    if (warp >= 8 && warp < 8 + UNPACK_WARPS) {
        unpack(pipeline, packed, memory + (aligned - start) + STAGES * STAGE_BYTES, warp - 8, steps);
    } else if (warp == THREADS / 32 - 1) {
        const Rows rows = {{(const u8*)tiles[2 * cursor.at], (const u8*)tiles[2 * cursor.at + 1]},
                           (column - (int)cursor.part.first) / (MODE == GATED ? 32 : 16),
                           ((int)cursor.part.columns + 15) / 16 - 1,
                           (size_t)tiles_of_row * Q::BYTES};
        if (threadIdx.x % 32 == 0) copy_tiles(packed, rows, steps);
    } else {
        if (leads) wait_on_dependent_grids();
        launch_dependent_grids();
        if (warp == 8 + UNPACK_WARPS) {
            if (threadIdx.x % 32 == 0) copy_tokens(pipeline, x, first_row, groups, steps);
        } else if (warp / 4 < groups) {
            float d[TILE_N / 8][4];
            for (int step = 0; step < steps; ++step) {
                mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
                const u64 a = wgmma_descriptor(pipeline.tile() + warp / 4 * (X_BYTES / 2)),
                          b = wgmma_descriptor(pipeline.tile() + X_BYTES);
                wgmma_fence();
                UNROLL for (int k = 0; k < TILE_K / 16; ++k) wgmma_ss(d, a + 2 * k, b + 2 * k, step + k > 0);
                wgmma_commit_group();
                wgmma_wait_group<0>();
                if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(pipeline.empty_barrier());
                pipeline.next();
            }
            const int row = first_row + warp * 16 + threadIdx.x % 32 / 4;
            UNROLL for (int n = 0; n < TILE_N / 8; n += 4)
                store_block<MODE>(cursor, row, n_rows, column + 8 * n, d + n, scale);
        }
    }
    if (!leads) wait_on_dependent_grids();
#endif
}
