// Multiply of a prefill on Hopper: out = x @ W.T for many tokens. W is unpacked to float16; sums are float32, in the order
// of K.
//
// With int8 operands, both rotated, a token has a scale for each 256 columns, and a row of W one for all. The products of 256
// columns are summed in int32, exactly; these sums are scaled by the token's scale and added in float32, in the order of K. The
// warpgroups take turns: one scales its sums while the tensor cores multiply for the other.
//
// A block computes tiles of 128 tokens by TILE_N rows of W, one after the other (persistent). If the last tiles would occupy at
// most half of the blocks, these tiles are halved along W. Roles: one producer thread copies steps of TILE_K columns
// with TMA into a pipeline; two consumer warpgroups multiply 64 tokens each. Elements past the matrices are read as zero and are
// not written: a token's result depends on no other token. Tiles are rasterised along the tokens, 2048 at a time, so that
// concurrent blocks share rows of W and tokens in the L2 cache.
//
// Grid (blocks that run at once), block 384, shared memory STAGES * STAGE_BYTES + 1024. Macros: MODE as in prefill.cu; INT8, 1
// for int8 operands (default 0); TILE_N, a multiple of 32 up to 256, of 64 if tiles may be halved; STAGES of the pipeline.
// Bytes: x once for each strip of W, W once for each 128 tokens, mostly from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill_epilogue.cuh"

#if !defined(MODE) || !defined(TILE_N) || !defined(STAGES)
#error "MODE, TILE_N and STAGES must be defined"
#endif

#ifndef INT8
#define INT8 0
#endif

constexpr int MAX_PARTS = 32;

// A stage holds 128 bytes of each row.
constexpr int TILE_M = 128, TILE_K = INT8 ? 128 : 64, RASTER_TILES_M = 16;
constexpr int X_BYTES = TILE_M * 128, W_BYTES = TILE_N * 128, STAGE_BYTES = X_BYTES + W_BYTES;
constexpr int BOX = TILE_N / 2;  // rows of W that a TMA copy loads
constexpr int LAST_N = TILE_N % 64 == 0 ? TILE_N / 2 : TILE_N;  // rows of W of the last tiles, in blocks of 32

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
        halves = LAST_N < TILE_N && 2 * left <= blocks ? 2 * left : 0;
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
        mbarrier_arrive_expect_tx(barrier, X_BYTES + N * 128);
        tma_load_2d(pipeline.tile(), x, step * TILE_K, tile.row, barrier);
        UNROLL for (int i = 0; i < N; i += BOX) {
            tma_load_2d(pipeline.tile() + X_BYTES + i * 128, w, step * TILE_K, tile.column + i, barrier);
        }
        pipeline.next();
    }
}

// Consumer: begin to multiply a stage's columns of 64 tokens, number `part` of the two halves. Returns the barrier at which to
// release the stage once they are multiplied.
template <class Sum, int N8>
__device__ __forceinline__ u32 begin_stage(Pipeline& pipeline, int part, bool accumulate, Sum (&d)[N8][4]) {
    mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
    const u64 a = wgmma_descriptor(pipeline.tile() + part * (X_BYTES / 2)), b = wgmma_descriptor(pipeline.tile() + X_BYTES);
    wgmma_fence();
    UNROLL for (int k = 0; k < 4; ++k) wgmma_ss(d, a + 2 * k, b + 2 * k, accumulate || k > 0);
    wgmma_commit_group();
    const u32 barrier = pipeline.empty_barrier();
    pipeline.next();
    return barrier;
}

__device__ __forceinline__ void release(u32 empty_barrier) {
    if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(empty_barrier);
}

// Consumer: multiply a tile of N rows of W with 64 tokens. `scales`: those of the thread's first token, `stride` apart.
template <int N>
__device__ __forceinline__ void multiply_tile(Pipeline& pipeline, int part, int steps, const float* scales, int stride,
                                              float (&d)[N / 8][4]) {
    if constexpr (!INT8) {
        for (int step = 0; step < steps; ++step) {
            const u32 stage = begin_stage(pipeline, part, step > 0, d);
            wgmma_wait_group<0>();
            release(stage);
        }
    } else {
        UNROLL for (int n = 0; n < N / 8; ++n) d[n][0] = d[n][1] = d[n][2] = d[n][3] = 0.0f;
        for (int step = 0; step < steps; step += 2, scales += stride) {
            const float by[2] = {scales[0], scales[8]};
            int sums[N / 8][4];
            named_barrier_sync<256>(1 + part);
            const u32 first = begin_stage(pipeline, part, false, sums), second = begin_stage(pipeline, part, true, sums);
            wgmma_wait_group<1>();
            named_barrier_arrive<256>(2 - part);
            release(first);
            wgmma_wait_group<0>();
            release(second);
            UNROLL for (int n = 0; n < N / 8; ++n) {
                UNROLL for (int i = 0; i < 4; ++i) d[n][i] = __fmaf_rn(__int2float_rn(sums[n][i]), by[i / 2], d[n][i]);
            }
        }
    }
}

// Multiply the sums of int8 products with the units of their rows of W. The rotation of tokens and rows
// (formats/rotated_bytes.cuh) has made the products 64 times as large.
template <int N>
__device__ __forceinline__ void scale_rows(const float* units, float (&d)[N / 8][4]) {
    UNROLL for (int n = 0; n < N / 8; ++n) {
        const float2 unit = *(const float2*)(units + 8 * n + threadIdx.x % 4 * 2);
        const float by[2] = {__fmul_rn(unit.x, 1.0f / 64.0f), __fmul_rn(unit.y, 1.0f / 64.0f)};
        UNROLL for (int i = 0; i < 4; ++i) d[n][i] = __fmul_rn(d[n][i], by[i % 2]);
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
prefill_hopper(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const float* scales, int stride,
               const float* units, const unsigned long long* parts, int n_parts, int n_rows, int columns, int width,
               float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES], outputs[4 * MAX_PARTS];
    const u32 first = smem_address(barriers);
    Pipeline pipeline = {(smem_address(memory) + 1023) & ~1023u, first, first + 8 * STAGES, 0, 0};
    const int group = threadIdx.x / 128, block = blockIdx.x, blocks = gridDim.x;
    const int steps = (width + TILE_K - 1) / TILE_K;
    const Tiles tiles(n_rows, columns, blocks);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(pipeline.full + 8 * s, 1);
            mbarrier_init(pipeline.empty + 8 * s, 2 * WARPGROUP_ARRIVALS);
        }
    }
    if (threadIdx.x < 4 * n_parts) outputs[threadIdx.x] = parts[threadIdx.x];
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised, the table is there
    wait_on_dependent_grids();

    if (group == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) {
            for (int i = block; i < tiles.whole; i += blocks) copy_tile<TILE_N>(pipeline, x, w, tiles.at(i), steps);
            if (block < tiles.halves) copy_tile<LAST_N>(pipeline, x, w, tiles.half_at(block), steps);
        }
    } else {
        setmaxnreg_inc<232>();
        if (INT8 && group == 2) named_barrier_arrive<256>(1);  // the first turn is that of the first warpgroup
        const int row = (group - 1) * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const auto write = [&](Tile tile, int n, const float (*d)[4]) {
            OutputCursor cursor(outputs, n_parts);
            UNROLL for (int i = 0; i < n; i += 4) {
                const int column = tile.column + 8 * i;
                if (column < columns) store_block<MODE>(cursor, tile.row + row, n_rows, column, d + i, scale);
            }
        };
        for (int i = block; i < tiles.whole; i += blocks) {
            const Tile tile = tiles.at(i);
            float d[TILE_N / 8][4];
            multiply_tile<TILE_N>(pipeline, group - 1, steps, scales + tile.row + row, stride, d);
            if (INT8) scale_rows<TILE_N>(units + tile.column, d);
            write(tile, TILE_N / 8, d);
        }
        if (block < tiles.halves) {
            const Tile tile = tiles.half_at(block);
            float d[LAST_N / 8][4];
            multiply_tile<LAST_N>(pipeline, group - 1, steps, scales + tile.row + row, stride, d);
            if (INT8) scale_rows<LAST_N>(units + tile.column, d);
            write(tile, LAST_N / 8, d);
        }
    }
#endif
}
