// Where the 16-byte lines of a tile of float16 are in shared memory. A tile is a sequence of blocks of 64 columns. A row of a
// block has 128 bytes, whose lines are permuted by the row's number (swizzle), so that neither wgmma nor ldmatrix has bank
// conflicts. Tiles are aligned to 1024 bytes.
#pragma once
#include "../gpu/include/types.cuh"

// Byte offset of line `line` (8 float16) of row `row` in a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ u32 swizzled(int row, int line) {
    return line / 8 * (ROWS * 128) + row * 128 + ((line ^ row) & 7) * 16;
}
