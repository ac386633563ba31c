// Multiply of a prefill: out = x @ W.T for many tokens, on the tensor cores of any GPU. W is unpacked to float16; sums are
// float32, in the order of K.
//
// A block computes 128 tokens by 128 rows of W, a warp 64 by 64. All warps copy steps of TILE_K columns with cp.async into a
// ring in shared memory, swizzled by 16 bytes, and multiply them. Elements past the matrices are read as zero and are not
// written: a token's result depends on no other token.
//
// Grid (tiles of tokens * tiles of rows of W), block 128, shared memory STAGES * STAGE_BYTES.
// Macros: TILE_K, 64, or 32 where two blocks would not fit in shared memory; MODE, STORE: out = scale * product, ADD: out +=
// scale * product, GATED: out = half(silu(gate) * up * INNER_SCALE).
// Bytes: x once for each 128 rows of W, W once for each 128 tokens, mostly from the L2 cache.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "prefill_epilogue.cuh"

#if !defined(MODE) || !defined(TILE_K)
#error "MODE and TILE_K must be defined"
#endif
static_assert(TILE_K == 32 || TILE_K == 64, "a row of a step is 64 or 128 bytes");

constexpr int TILE = 128, LINES = TILE_K / 8, STAGES = TILE_K == 64 ? 2 : 3, THREADS = 128;
constexpr int MATRIX_BYTES = TILE * TILE_K * 2, STAGE_BYTES = 2 * MATRIX_BYTES;

// Byte offset of 16-byte line `line` of row `row` of a matrix. The same line of eight consecutive rows falls into eight
// different bank groups.
__device__ __forceinline__ int swizzled(int row, int line) {
    return row * TILE_K * 2 + (line ^ (TILE_K == 64 ? row % 8 : row / 2 % 4)) * 16;
}

// Start to copy 128 rows of a matrix, TILE_K columns from `k`.
__device__ __forceinline__ void fetch(u32 shared, const u16* from, int first, int rows, int k, int width) {
    UNROLL for (int i = 0; i < TILE * LINES / THREADS; ++i) {
        const int row = (threadIdx.x + i * THREADS) / LINES, line = threadIdx.x % LINES;
        const bool exists = first + row < rows && k + 8 * line < width;
        const u16* at = from + (exists ? (size_t)(first + row) * width + k + 8 * line : 0);
        cp_async_16_zfill(shared + swizzled(row, line), at, exists);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 2)
prefill(const unsigned short* x, const unsigned short* w, const unsigned long long* parts, int n_parts, int n_rows,
        int columns, int width, float scale) {
    extern __shared__ __align__(128) u8 ring[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row_tiles = (n_rows + TILE - 1) / TILE;
    const int first_row = blockIdx.x % row_tiles * TILE, first_column = blockIdx.x / row_tiles * TILE;
    const int warp_row = warp % 2 * 64, warp_column = warp / 2 * 64;
    const u32 shared = smem_address(ring);
    const int steps = (width + TILE_K - 1) / TILE_K;

    launch_dependent_grids();
    wait_on_dependent_grids();
    const auto fill = [&](int stage, int step) {
        fetch(shared + stage * STAGE_BYTES, x, first_row, n_rows, step * TILE_K, width);
        fetch(shared + stage * STAGE_BYTES + MATRIX_BYTES, w, first_column, columns, step * TILE_K, width);
    };
    UNROLL for (int s = 0; s < STAGES - 1; ++s) {
        if (s < steps) fill(s, s);
        cp_async_commit_group();
    }

    float d[4][8][4];
    clear(d);
    // the lane's row and line of a 16 x 16 matrix, for ldmatrix
    const int a_row = warp_row + lane % 16, a_line = lane / 16;
    const int b_row = warp_column + lane % 8 + lane / 16 * 8, b_line = lane / 8 % 2;
    int stage = 0, free = STAGES - 1;
    for (int step = 0; step < steps; ++step) {
        cp_async_wait_group<STAGES - 2>();
        __syncthreads();  // this step is visible, and the stage that is refilled below was read
        if (step + STAGES - 1 < steps) fill(free, step + STAGES - 1);
        cp_async_commit_group();
        const u32 a_at = shared + stage * STAGE_BYTES, b_at = a_at + MATRIX_BYTES;
        UNROLL for (int k = 0; k < TILE_K / 16; ++k) {
            u32 a[4][4], b[4][4];
            UNROLL for (int m = 0; m < 4; ++m) ldmatrix_x4(a[m], a_at + swizzled(a_row + 16 * m, 2 * k + a_line));
            UNROLL for (int n = 0; n < 4; ++n) ldmatrix_x4(b[n], b_at + swizzled(b_row + 16 * n, 2 * k + b_line));
            UNROLL for (int m = 0; m < 4; ++m)
                UNROLL for (int n = 0; n < 8; ++n) mma_m16n8k16(d[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
        }
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        free = free + 1 == STAGES ? 0 : free + 1;
    }

    UNROLL for (int m = 0; m < 4; ++m) {
        OutputCursor cursor(parts, n_parts);
        UNROLL for (int n = 0; n < 8; n += 4) {
            const int row = first_row + warp_row + 16 * m + lane / 4, column = first_column + warp_column + 8 * n;
            if (column < columns) store_block<MODE>(cursor, row, n_rows, column, d[m] + n, scale);
        }
    }
}
