// Tiles of queries, keys and values in shared memory.
//
// A tile is blocks of 64 columns, one after the other. A row of a block is 128 bytes, whose 16-byte lines are permuted by the
// row's number (swizzled), so that neither tensor cores nor ldmatrix have bank conflicts. Tiles are aligned to 1024 bytes.
// Macros: HEAD_DIM, elements of a head; TILE_KV, TILE_Q, rows of the tiles of keys and values and of queries. wgmma.cuh, included
// before this file, also defines VALUE_COLUMNS, the columns of the sums of values.
#pragma once
#include "../gpu/include/types.cuh"

#if !defined(HEAD_DIM) || !defined(TILE_KV) || !defined(TILE_Q)
#error "HEAD_DIM, TILE_KV and TILE_Q must be defined"
#endif
#ifndef VALUE_COLUMNS
#define VALUE_COLUMNS HEAD_DIM
#endif
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "heads of 16, 32, ... 256 numbers");
static_assert(TILE_KV % 16 == 0 && 64 % TILE_KV == 0 && TILE_Q % 64 == 0, "tiles of 16 to 64 keys and of 64, 128, ... queries");

constexpr int SCORES = TILE_KV / 8, VALUES = VALUE_COLUMNS / 8;  // fragments of 16 queries and 8 columns
constexpr int COLUMNS = (HEAD_DIM + 63) / 64, LINES = HEAD_DIM / 8;
constexpr int TILE_BYTES = COLUMNS * TILE_KV * 128, QUERY_TILE_BYTES = COLUMNS * TILE_Q * 128;

// Byte offset of line `line` (8 float16) of row `row` in a tile of ROWS rows.
template <int ROWS>
__device__ __forceinline__ u32 swizzled(int row, int line) {
    return line / 8 * (ROWS * 128) + row * 128 + ((line ^ row) & 7) * 16;
}
