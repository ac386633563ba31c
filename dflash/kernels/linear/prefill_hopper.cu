// Multiply of a prefill on Hopper: out = x @ W.T for many tokens. W is unpacked to float16; sums are float32, in the order
// of K.
//
// A block computes tiles of 128 tokens by 256 rows of W, one after the other (persistent). If the last tiles would occupy at
// most half of the blocks, these tiles are halved along W. Roles: one producer thread copies steps of TILE_K columns with
// TMA into a pipeline; two consumer warpgroups multiply 64 tokens each. Elements past the matrices are read as zero and are
// not written: a token's result depends on no other token. Tiles are rasterised along the tokens, 2048 at a time, so that
// concurrent blocks share rows of W and tokens in the L2 cache.
//
// Grid (blocks that run at once), block 384, shared memory STAGES * STAGE_BYTES + 1024. Macros: MODE as in prefill.cu.
// Bytes: x once for each 256 rows of W, W once for each 128 tokens, mostly from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill_epilogue.cuh"

#ifndef MODE
#error "MODE must be defined"
#endif

constexpr int TILE_M = 128, TILE_N = 256, TILE_K = 64, STAGES = 4, RASTER_TILES_M = 16;
constexpr int X_BYTES = TILE_M * TILE_K * 2, W_BYTES = TILE_N * TILE_K * 2, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int BOX = TILE_N / 2;  // rows of W that a TMA copy loads

struct Tile {
    int row, column;
};

// The tiles of a launch: whole tiles first, then halved ones.
struct Tiles {
    int across, strips, whole, halves;

    __device__ Tiles(int n_rows, int columns, int blocks) {
        across = (n_rows + TILE_M - 1) / TILE_M;
        strips = (columns + TILE_N - 1) / TILE_N;
        const int left = across * strips % blocks;
        halves = 2 * left <= blocks ? 2 * left : 0;
        whole = across * strips - halves / 2;
    }
    __device__ Tile at(int i) const {
        const int band = i / (RASTER_TILES_M * strips), first = band * RASTER_TILES_M;
        const int wide = min(RASTER_TILES_M, across - first), left = i - first * strips;
        return {(first + left % wide) * TILE_M, left / wide * TILE_N};
    }
    __device__ Tile half_at(int i) const {
        const Tile tile = at(whole + i / 2);
        return {tile.row, tile.column + i % 2 * (TILE_N / 2)};
    }
};

using Pipeline = PipelineState<STAGES, STAGE_BYTES>;

// Producer: copy a tile of N rows of W.
template <int N>
__device__ __forceinline__ void copy_tile(Pipeline& pipeline, const TensorMap& x, const TensorMap& w, Tile tile, int steps) {
    for (int step = 0; step < steps; ++step) {
        const u32 barrier = pipeline.full_barrier();
        mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
        mbarrier_arrive_expect_tx(barrier, X_BYTES + N * TILE_K * 2);
        tma_load_2d(pipeline.tile(), x, step * TILE_K, tile.row, barrier);
        UNROLL for (int i = 0; i < N; i += BOX) {
            tma_load_2d(pipeline.tile() + X_BYTES + i * TILE_K * 2, w, step * TILE_K, tile.column + i, barrier);
        }
        pipeline.next();
    }
}

// Consumer: multiply a tile of N rows of W with 64 tokens, number `part` of the two halves.
template <int N>
__device__ __forceinline__ void multiply_tile(Pipeline& pipeline, int part, int steps, float (&d)[N / 8][4]) {
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
        const u64 a = wgmma_descriptor(pipeline.tile() + part * (X_BYTES / 2)),
                  b = wgmma_descriptor(pipeline.tile() + X_BYTES);
        wgmma_fence();
        UNROLL for (int k = 0; k < TILE_K / 16; ++k) wgmma_ss(d, a + 2 * k, b + 2 * k, step + k > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(pipeline.empty_barrier());
        pipeline.next();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
prefill_hopper(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const unsigned long long* parts,
               int n_parts, int n_rows, int columns, int width, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    const u32 first = smem_address(barriers);
    Pipeline pipeline = {(smem_address(memory) + 1023) & ~1023u, first, first + 8 * STAGES, 0, 0};
    const int group = threadIdx.x / 128, steps = (width + TILE_K - 1) / TILE_K, block = blockIdx.x, blocks = gridDim.x;
    const Tiles tiles(n_rows, columns, blocks);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(pipeline.full + 8 * s, 1);
            mbarrier_init(pipeline.empty + 8 * s, 2 * WARPGROUP_ARRIVALS);
        }
    }
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised
    wait_on_dependent_grids();

    if (group == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) {
            for (int i = block; i < tiles.whole; i += blocks) copy_tile<TILE_N>(pipeline, x, w, tiles.at(i), steps);
            if (block < tiles.halves) copy_tile<TILE_N / 2>(pipeline, x, w, tiles.half_at(block), steps);
        }
    } else {
        setmaxnreg_inc<232>();
        const int row = (group - 1) * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const auto write = [&](Tile tile, int n, const float (*d)[4]) {
            OutputCursor cursor(parts, n_parts);
            UNROLL for (int i = 0; i < n; i += 4) {
                const int column = tile.column + 8 * i;
                if (column < columns) store_block<MODE>(cursor, tile.row + row, n_rows, column, d + i, scale);
            }
        };
        for (int i = block; i < tiles.whole; i += blocks) {
            float d[TILE_N / 8][4];
            multiply_tile<TILE_N>(pipeline, group - 1, steps, d);
            write(tiles.at(i), TILE_N / 8, d);
        }
        if (block < tiles.halves) {
            float d[TILE_N / 16][4];
            multiply_tile<TILE_N / 2>(pipeline, group - 1, steps, d);
            write(tiles.half_at(block), TILE_N / 16, d);
        }
    }
#endif
}
