// out = x @ W.T for some tokens, on Hopper, from tiles as they are: the same halves, multiplied in the same order as those
// that `unpack.cu` writes for `prefill_hopper.cu`, so the same bits.
//
// A block makes 128 tokens by 64 rows of W in steps of 64 of K. One thread copies tokens into a ring, another one packed
// tiles into a ring of their own. Of sixteen warps that unpack, eight take a step: each 16 rows by 32. Two groups of four
// warps multiply 64 tokens each. All 128 tokens unpack W anew, so this is for few of them.
//
// Launches that write different `out` may run at once. The `leads` one waits for whoever comes before, and only then lets
// the next start, which so need not wait.
//
// Grid (tiles of tokens, strips of 64 rows of all matrices), block 832, shared 1024 + STAGES * STAGE + RAW * RAW_STAGE.
// Macros: QUANT, the format; MODE as in prefill.cu; GATED takes 32 rows of the gate and 32 of the up projection.
// Bytes: the tiles once for each 128 tokens, x once for each 64 rows of W.
#include "../formats/halves.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "prefill.cuh"

#if !defined(QUANT) || !defined(MODE)
#error "QUANT and MODE must be defined"
#endif

using Q = QUANT;
constexpr int TOKENS = 128, COLUMNS = 64, STEP = 64, STAGES = 6, RAW = 4, UNPACKERS = 16, THREADS = 832;
constexpr int X_BYTES = TOKENS * STEP * 2, STAGE = X_BYTES + COLUMNS * STEP * 2, RAW_STAGE = 4 * Q::BYTES;
constexpr int STEPS = Q::TILE_K / STEP;  // of a tile
static_assert(STEPS == 1 || STEPS % 2 == 0, "warps take every other step, or every other tile");

// Where a thread is in a ring.
template <int N, int BYTES>
struct Ring {
    u32 memory, filled, freed;
    int stage, phase;

    __device__ u32 at() const { return memory + stage * BYTES; }
    __device__ u32 is_filled() const { return filled + 8 * stage; }
    __device__ u32 is_free() const { return freed + 8 * stage; }
    __device__ void move() {
        if (++stage == N) stage = 0, phase ^= 1;
    }
};
using Steps = Ring<STAGES, STAGE>;
using Raws = Ring<RAW, RAW_STAGE>;

// The four row tiles of a strip.
struct Rows {
    const u8* tiles[2];  // of the matrix, or of the gate and of the up projection
    int first, last;     // row tile of the strip, of the matrix
    size_t bytes;        // of a row of tiles

    __device__ const u8* of(int q) const {
        const int tile = first + (MODE == GATED ? q % 2 : q);
        return (MODE == GATED && q >= 2 ? tiles[1] : tiles[0]) + min(tile, last) * bytes;
    }
};

__device__ __forceinline__ void copy_tiles(Raws& raws, const Rows& rows, int steps) {
    for (int i = 0; i * STEPS < steps; ++i) {
        mbarrier_wait(raws.is_free(), raws.phase ^ 1);
        mbarrier_arrive_expect_tx(raws.is_filled(), RAW_STAGE);
#pragma unroll
        for (int q = 0; q < 4; ++q) {
            bulk_copy(raws.at() + q * Q::BYTES, rows.of(q) + (size_t)i * Q::BYTES, Q::BYTES, raws.is_filled());
        }
        raws.move();
    }
}

// Warp `u` unpacks 16 rows, 32 of every other step.
__device__ __forceinline__ void unpack(Steps& ring, Raws& raws, const u8* memory, int u, int steps) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, q = u % 4, part = u / 4 % 2, parity = u / 8;
    u32 to[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = g + 8 * r, at = MODE == GATED ? paired_place(q % 2 * 16 + row, q / 2) : place(q * 16 + row);
        to[r] = X_BYTES + at * 128 + ((4 * part + which_eight<Q>(t)) ^ at % 8) * 16;
    }
    for (int i = 0; i * STEPS < steps; ++i) {
        const bool mine = STEPS > 1 || i % 2 == parity;
        if (mine) mbarrier_wait(raws.is_filled(), raws.phase);
        const u8* tile = memory + raws.stage * RAW_STAGE + q * Q::BYTES;
#pragma unroll
        for (int s = 0; s < STEPS; ++s) {
            if (i * STEPS + s >= steps) break;
            if (STEPS > 1 ? s % 2 == parity : mine) {
                uint4 lines[2];
#pragma unroll
                for (int r = 0; r < 2; ++r) lines[r] = eight_halves<Q>(tile, g + 8 * r, 2 * s + part, t);
                mbarrier_wait(ring.is_free(), ring.phase ^ 1);
                st_shared_16(ring.at() + to[0], lines[0]);
                st_shared_16(ring.at() + to[1], lines[1]);
                fence_async_proxy();
                __syncwarp();
                if (lane == 0) mbarrier_arrive(ring.is_filled());
            }
            ring.move();
        }
        __syncwarp();
        if (mine && lane == 0) mbarrier_arrive(raws.is_free());
        raws.move();
    }
}

__device__ __forceinline__ void copy_tokens(Steps& ring, const TensorMap& x, int row, int groups, int steps) {
    for (int step = 0; step < steps; ++step) {
        mbarrier_wait(ring.is_free(), ring.phase ^ 1);
        mbarrier_arrive_expect_tx(ring.is_filled(), groups * (X_BYTES / 2));
        for (int i = 0; i < groups; ++i) {
            tma_load_2d(ring.at() + i * (X_BYTES / 2), x, step * STEP, row + i * (TOKENS / 2), ring.is_filled());
        }
        ring.move();
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_packed(const __grid_constant__ TensorMap x, const unsigned long long* tiles, const unsigned long long* parts,
               int n_parts, int n_rows, int width, int tiles_of_row, float scale, int leads) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * (STAGES + RAW)];
    const u32 barrier = smem_address(barriers), start = smem_address(memory);
    const u32 aligned = (start + 1023) & ~1023u;
    Steps ring = {aligned, barrier, barrier + 8 * STAGES, 0, 0};
    Raws raws = {aligned + STAGES * STAGE, barrier + 16 * STAGES, barrier + 16 * STAGES + 8 * RAW, 0, 0};
    const int warp = threadIdx.x / 32, first_row = blockIdx.x * TOKENS, column = blockIdx.y * COLUMNS;
    const int groups = n_rows - first_row > TOKENS / 2 ? 2 : 1, steps = (width + STEP - 1) / STEP;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(ring.filled + 8 * s, 1 + UNPACKERS / 2);
            mbarrier_init(ring.freed + 8 * s, groups);
        }
        for (int s = 0; s < RAW; ++s) {
            mbarrier_init(raws.filled + 8 * s, 1);
            mbarrier_init(raws.freed + 8 * s, STEPS > 1 ? UNPACKERS : UNPACKERS / 2);
        }
    }
    __syncthreads();

    Walk walk(parts, n_parts);
    walk.move(column);
    if (warp >= 8 && warp < 8 + UNPACKERS) {
        unpack(ring, raws, memory + (aligned - start) + STAGES * STAGE, warp - 8, steps);
    } else if (warp == THREADS / 32 - 1) {
        const Rows rows = {{(const u8*)tiles[2 * walk.at], (const u8*)tiles[2 * walk.at + 1]},
                           (column - (int)walk.part.first) / (MODE == GATED ? 32 : 16),
                           ((int)walk.part.columns + 15) / 16 - 1,
                           (size_t)tiles_of_row * Q::BYTES};
        if (threadIdx.x % 32 == 0) copy_tiles(raws, rows, steps);
    } else {
        if (leads) wait_on_dependent_grids();
        launch_dependent_grids();
        if (warp == 8 + UNPACKERS) {
            if (threadIdx.x % 32 == 0) copy_tokens(ring, x, first_row, groups, steps);
        } else if (warp / 4 < groups) {
            float d[COLUMNS / 8][4];
            for (int step = 0; step < steps; ++step) {
                mbarrier_wait(ring.is_filled(), ring.phase);
                const u64 a = wgmma_descriptor(ring.at() + warp / 4 * (X_BYTES / 2)), b = wgmma_descriptor(ring.at() + X_BYTES);
                wgmma_fence();
#pragma unroll
                for (int k = 0; k < STEP / 16; ++k) wgmma_ss(d, a + 2 * k, b + 2 * k, step + k > 0);
                wgmma_commit_group();
                wgmma_wait_group<0>();
                if (threadIdx.x % 128 == 0) mbarrier_arrive(ring.is_free());
                ring.move();
            }
            const int row = first_row + warp * 16 + threadIdx.x % 32 / 4;
#pragma unroll
            for (int n = 0; n < COLUMNS / 8; n += 4) put_block<MODE>(walk, row, n_rows, column + 8 * n, d + n, scale);
        }
    }
    if (!leads) wait_on_dependent_grids();
#endif
}
