// Unpack tiles to rows in the order of fragment_rows.cuh: row i of the matrix goes to row `fragment_row(i)` of `out`.
//
// As float16, the values are those that the format defines, rounded once. As int8, these are rotated (rotated_bytes.cuh), in
// units of about a 127th of the largest of their row, which are written to `units`; columns past the matrix are zeros, and
// `width` is a multiple of 256. Or these largest values are all that is written, to `maxima`, which must be zero.
//
// Launches that fill different rows of `out` may run at once. The first one (`leads`) waits for earlier readers of `out`
// before it lets the next one start. The next one need not wait before it writes.
//
// Grid (tiles of a row / WARPS rounded up, row tiles of the part), block 32 * WARPS: a warp unpacks a tile. Shared memory
// WARPS * Q::BYTES (static).
// Macros: QUANT, the format; PART, 0: the rows of a matrix, 1 or 2: those of the gate or of the up projection, which share
// `out`; AS: HALVES (default), INT8 or MAXIMA. Bytes: the tiles once, 2 or 1 a weight written.
#include "../gpu/include/pdl.cuh"
#include "fragment_rows.cuh"
#include "halves.cuh"
#include "rotated_bytes.cuh"

#define HALVES 0
#define INT8 1
#define MAXIMA 2

#if !defined(QUANT) || !defined(PART)
#error "QUANT and PART must be defined"
#endif
#ifndef AS
#define AS HALVES
#endif
using Q = QUANT;
constexpr int WARPS = 4, BLOCKS = Q::TILE_K / 32;

// Row of `out` of a row of the matrix.
__device__ __forceinline__ int out_row(int row) { return PART ? paired_fragment_row(row, PART - 1) : fragment_row(row); }

#if AS == HALVES
// Write 16 rows that begin at row `first`.
__device__ __forceinline__ void write(const u8* tile, u8* out, const float*, const float*, int first, int rows, int column,
                                      int width, int lane) {
    const int g = lane / 4, t = lane % 4;
    const int k = column * Q::TILE_K + 8 * lane_octet<Q>(t);
    u16* to[2];
    UNROLL for (int r = 0; r < 2; ++r) {
        const int row = first + g + 8 * r;
        to[r] = row < rows ? (u16*)out + (size_t)out_row(row) * width : nullptr;
    }
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        UNROLL for (int r = 0; r < 2; ++r) {
            const uint4 line = eight_halves<Q>(tile, g + 8 * r, j, t);
            if (to[r] && k + 32 * j < width) *(uint4*)(to[r] + k + 32 * j) = line;
        }
    }
}

#else
// The same as int8, or the largest values of the rows; a lane has a whole group, as tiles have 256 columns.
__device__ __forceinline__ void write(const u8* tile, u8* out, float* units, float* maxima, int first, int rows, int column,
                                      int width, int lane) {
    const int g = lane / 4, t = lane % 4;
    for (int r = 0; r < 2; ++r) {
        const int row = first + g + 8 * r, to_row = out_row(row);
        u32 words[4 * BLOCKS];
        UNROLL for (int j = 0; j < BLOCKS; ++j) *(uint4*)(words + 4 * j) = eight_halves<Q>(tile, g + 8 * r, j, t);
        rotate(words);
        if (row >= rows) continue;
        if (AS == MAXIMA) {
            atomicMax((int*)maxima + to_row, __float_as_int(largest_of(words)));
            continue;
        }
        const u16 factor = half_factor(maxima[to_row]);
        const u32 factors = factor | (u32)factor << 16;
        if (column == 0 && t == 0) units[to_row] = factor ? __fdiv_rn(1.0f, to_float(factor)) : 0.0f;
        u8* to = out + (size_t)to_row * width + column * Q::TILE_K + 8 * lane_octet<Q>(t);
        UNROLL for (int j = 0; j < BLOCKS; ++j) {
            const u32* line = words + 4 * j;
            *(uint2*)(to + 32 * j) = make_uint2(four_bytes(line[0], line[1], factors), four_bytes(line[2], line[3], factors));
        }
    }
}
#endif

extern "C" __global__ void __launch_bounds__(32 * WARPS, 8)
unpack(const unsigned char* tiles, unsigned char* out, float* units, float* maxima, int rows, int width, int tiles_of_row,
       int leads) {
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
    if (column < tiles_of_row) write(staged[warp], out, units, maxima, 16 * blockIdx.y, rows, column, width, lane);
    if (!leads) wait_on_dependent_grids();
}
