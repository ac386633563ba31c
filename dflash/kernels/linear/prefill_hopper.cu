// out = x @ W.T for many tokens, on Hopper: W unpacked to halves, sums in float32 in the order of K.
//
// A block makes 128 tokens by 256 rows of W, tile after tile; if the last tiles would keep no more than half of the blocks
// busy, they are halved along W. One thread copies steps of 64 of K into a ring; two groups of four warps multiply 64 tokens
// each. What lies past the matrices is zero and is not written: a token's values depend on nothing but the token. Tiles are
// taken along the tokens, 2048 at a time, so that what runs at once shares rows of W and tokens in the L2 cache.
//
// Grid (blocks that run at once), block 384, shared STAGES * STAGE + 1024.
// Macros: MODE as in prefill.cu.
// Bytes: x once for each 256 rows of W, W once for each 128 tokens, most of it from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill.cuh"

#ifndef MODE
#error "MODE must be defined"
#endif

constexpr int TOKENS = 128, COLUMNS = 256, STEP = 64, STAGES = 4, TOKEN_TILES_AT_ONCE = 16;
constexpr int X_BYTES = TOKENS * STEP * 2, W_BYTES = COLUMNS * STEP * 2, STAGE = X_BYTES + W_BYTES;
constexpr int BOX = COLUMNS / 2;  // rows of W of a copy

struct Tile {
    int row, column;
};

// The tiles of a launch, and how many of them are whole.
struct Tiles {
    int across, strips, whole, halves;

    __device__ Tiles(int n_rows, int columns, int blocks) {
        across = (n_rows + TOKENS - 1) / TOKENS;
        strips = (columns + COLUMNS - 1) / COLUMNS;
        const int left = across * strips % blocks;
        halves = 2 * left <= blocks ? 2 * left : 0;
        whole = across * strips - halves / 2;
    }
    __device__ Tile at(int i) const {
        const int band = i / (TOKEN_TILES_AT_ONCE * strips), first = band * TOKEN_TILES_AT_ONCE;
        const int wide = min(TOKEN_TILES_AT_ONCE, across - first), left = i - first * strips;
        return {(first + left % wide) * TOKENS, left / wide * COLUMNS};
    }
    __device__ Tile half_at(int i) const {
        const Tile tile = at(whole + i / 2);
        return {tile.row, tile.column + i % 2 * (COLUMNS / 2)};
    }
};

// Where a thread is in the ring.
struct Ring {
    u32 memory, filled, freed;
    int stage, phase;

    __device__ u32 at() const { return memory + stage * STAGE; }
    __device__ void move() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// Of N rows of W.
template <int N>
__device__ __forceinline__ void copy_tile(Ring& ring, const TensorMap& x, const TensorMap& w, Tile tile, int steps) {
    for (int step = 0; step < steps; ++step) {
        const u32 barrier = ring.filled + 8 * ring.stage;
        mbarrier_wait(ring.freed + 8 * ring.stage, ring.phase ^ 1);
        mbarrier_arrive_expect_tx(barrier, X_BYTES + N * STEP * 2);
        tma_load_2d(ring.at(), x, step * STEP, tile.row, barrier);
#pragma unroll
        for (int i = 0; i < N; i += BOX) {
            tma_load_2d(ring.at() + X_BYTES + i * STEP * 2, w, step * STEP, tile.column + i, barrier);
        }
        ring.move();
    }
}

template <int N>
__device__ __forceinline__ void multiply_tile(Ring& ring, int part, int steps, float (&d)[N / 8][4]) {
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.filled + 8 * ring.stage, ring.phase);
        const u64 a = wgmma_descriptor(ring.at() + part * (X_BYTES / 2)), b = wgmma_descriptor(ring.at() + X_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; ++k) wgmma_ss(d, a + 2 * k, b + 2 * k, step + k > 0);
        wgmma_commit_group();
        wgmma_wait_group<0>();
        if (threadIdx.x % 128 == 0) mbarrier_arrive(ring.freed + 8 * ring.stage);
        ring.move();
    }
}

extern "C" __global__ void __launch_bounds__(384, 1)
prefill_hopper(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap w, const unsigned long long* parts,
               int n_parts, int n_rows, int columns, int width, float scale) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    const u32 first = smem_address(barriers);
    Ring ring = {(smem_address(memory) + 1023) & ~1023u, first, first + 8 * STAGES, 0, 0};
    const int group = threadIdx.x / 128, steps = (width + STEP - 1) / STEP, block = blockIdx.x, blocks = gridDim.x;
    const Tiles tiles(n_rows, columns, blocks);

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(ring.filled + 8 * s, 1);
            mbarrier_init(ring.freed + 8 * s, 2);
        }
    }
    launch_dependent_grids();
    __syncthreads();
    wait_on_dependent_grids();

    if (group == 0) {
        setmaxnreg_dec<40>();
        if (threadIdx.x == 0) {
            for (int i = block; i < tiles.whole; i += blocks) copy_tile<COLUMNS>(ring, x, w, tiles.at(i), steps);
            if (block < tiles.halves) copy_tile<COLUMNS / 2>(ring, x, w, tiles.half_at(block), steps);
        }
    } else {
        setmaxnreg_inc<232>();
        const int row = (group - 1) * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
        const auto write = [&](Tile tile, int n, const float(*d)[4]) {
            Walk walk(parts, n_parts);
#pragma unroll
            for (int i = 0; i < n; i += 4) {
                const int column = tile.column + 8 * i;
                if (column < columns) put_block<MODE>(walk, tile.row + row, n_rows, column, d + i, scale);
            }
        };
        for (int i = block; i < tiles.whole; i += blocks) {
            float d[COLUMNS / 8][4];
            multiply_tile<COLUMNS>(ring, group - 1, steps, d);
            write(tiles.at(i), COLUMNS / 8, d);
        }
        if (block < tiles.halves) {
            float d[COLUMNS / 16][4];
            multiply_tile<COLUMNS / 2>(ring, group - 1, steps, d);
            write(tiles.half_at(block), COLUMNS / 16, d);
        }
    }
#endif
}
