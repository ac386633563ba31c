// Tiles of queries, keys and values in shared memory.
//
// A tile is blocks of 64 columns, one after the other; in a block a row is 128 bytes, whose lines of 16 are permuted by the
// row's number, so that neither tensor cores nor ldmatrix meet a bank twice. It begins at a multiple of 1024.
// Macros: HEAD, numbers of a head; KEYS, QUERIES, rows of the tiles.
#pragma once
#include "../gpu/include/types.cuh"

#if !defined(HEAD) || !defined(KEYS) || !defined(QUERIES)
#error "HEAD, KEYS and QUERIES must be defined"
#endif
static_assert(HEAD % 16 == 0 && HEAD <= 256, "heads of 16, 32, ... 256 numbers");
static_assert(KEYS % 16 == 0 && 64 % KEYS == 0 && QUERIES % 64 == 0, "tiles of 16 to 64 keys and of 64, 128, ... queries");

constexpr int COLUMNS = (HEAD + 63) / 64, LINES = HEAD / 8;
constexpr int TILE = COLUMNS * KEYS * 128, QUERY_TILE = COLUMNS * QUERIES * 128;

// Where line `line` (8 halves) of row `row` of a tile of `ROWS` rows lies.
template <int ROWS>
__device__ __forceinline__ u32 place(int row, int line) {
    return line / 8 * (ROWS * 128) + row * 128 + ((line ^ row) & 7) * 16;
}
