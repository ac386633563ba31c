// Unpack tiles to rows of float16 in the order of fragment_rows.cuh: row i of the matrix goes to row `fragment_row(i)` of
// `out`. Values are those that the format defines, rounded once.
//
// Launches that fill different rows of `out` may run at once. The first one (`leads`) waits for earlier readers of `out`
// before it lets the next one start. The next one need not wait before it writes.
//
// Grid (tiles of a row / WARPS rounded up, row tiles of the part), block 32 * WARPS: a warp unpacks a tile. Shared memory
// WARPS * Q::BYTES (static).
// Macros: QUANT, the format; PART, 0: the rows of a matrix, 1 or 2: those of the gate or of the up projection, which share
// `out`. Bytes: the tiles once, 2 a weight written.
#include "../gpu/include/pdl.cuh"
#include "fragment_rows.cuh"
#include "halves.cuh"

#if !defined(QUANT) || !defined(PART)
#error "QUANT and PART must be defined"
#endif
using Q = QUANT;
constexpr int WARPS = 4, BLOCKS = Q::TILE_K / 32;

// Write 16 rows that begin at row `first`.
__device__ __forceinline__ void write(const u8* tile, u16* out, int first, int rows, int column, int width, int lane) {
    const int g = lane / 4, t = lane % 4;
    const int k = column * Q::TILE_K + 8 * lane_octet<Q>(t);
    u16* to[2];
    UNROLL for (int r = 0; r < 2; ++r) {
        const int row = first + g + 8 * r;
        to[r] = row < rows ? out + (size_t)(PART ? paired_fragment_row(row, PART - 1) : fragment_row(row)) * width : nullptr;
    }
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        UNROLL for (int r = 0; r < 2; ++r) {
            const uint4 line = eight_halves<Q>(tile, g + 8 * r, j, t);
            if (to[r] && k + 32 * j < width) *(uint4*)(to[r] + k + 32 * j) = line;
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8)
unpack(const unsigned char* tiles, unsigned short* out, int rows, int width, int tiles_of_row, int leads) {
    __shared__ __align__(16) u8 staged[WARPS][Q::BYTES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column = blockIdx.x * WARPS + warp;
    uint4* to = (uint4*)staged[warp];
    if (column < tiles_of_row) {
        const uint4* from = (const uint4*)(tiles + ((size_t)blockIdx.y * tiles_of_row + column) * Q::BYTES);
        UNROLL for (int i = lane; i < Q::BYTES / 16; i += 32) to[i] = __ldg(from + i);
    }
    __syncwarp();
    if (leads) wait_on_dependent_grids();
    launch_dependent_grids();
    if (column < tiles_of_row) write(staged[warp], out, 16 * blockIdx.y, rows, column, width, lane);
    if (!leads) wait_on_dependent_grids();
}
