// Tiles of queries, keys and values in shared memory.
//
// Their layout is that of swizzle.cuh. Macros: HEAD_DIM, elements of a head; TILE_KV, rows of a tile of keys or values; TILE_Q,
// rows of a query tile. wgmma.cuh includes this file after it has defined VALUE_COLUMNS, the columns of the sums of values.
#pragma once
#include "../gpu/include/types.cuh"
#include "swizzle.cuh"

#if !defined(HEAD_DIM) || !defined(TILE_KV) || !defined(TILE_Q)
#error "HEAD_DIM, TILE_KV and TILE_Q must be defined"
#endif
#ifndef VALUE_COLUMNS
#define VALUE_COLUMNS HEAD_DIM
#endif
static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "HEAD_DIM must be 16, 32, ... or 256");
static_assert(TILE_KV % 16 == 0 && 64 % TILE_KV == 0 && TILE_Q % 64 == 0,
              "TILE_KV must be 16, 32 or 64, TILE_Q a multiple of 64");

constexpr int SCORES = TILE_KV / 8, VALUES = VALUE_COLUMNS / 8;  // fragments of 16 queries and 8 columns
constexpr int COLUMNS = (HEAD_DIM + 63) / 64, LINES = HEAD_DIM / 8;
constexpr int TILE_BYTES = COLUMNS * TILE_KV * 128, QUERY_TILE_BYTES = COLUMNS * TILE_Q * 128;
