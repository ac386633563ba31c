// How what a sequence's rows see is cut: the context in tiles of KEYS positions, the block as one more tile after them; all in at
// most SPLITS parts of equal size.
//
// Position p of the context is at place p % PLACES of the ring, and tiles begin at multiples of KEYS.
// Macros: PLACES, of a ring; WINDOW, 0 for none; KEYS; SPLITS.
#pragma once

#if !defined(PLACES) || !defined(WINDOW) || !defined(KEYS) || !defined(SPLITS)
#error "PLACES, WINDOW, KEYS and SPLITS must be defined"
#endif
static_assert(PLACES >= KEYS && KEYS >= 32, "a tile goes round a ring at most once; a block is a tile");

struct Blocks {
    const int *first, *begin, *length;
};

// The tiles of a sequence.
struct Tiles {
    int oldest, length, rows;  // positions of the context, rows of the block
    int first, own;            // tiles: the first one of the context, the one of the block, which is the last
    int steps, parts;          // tiles of a part

    __device__ __forceinline__ Tiles(const Blocks& blocks, int s) {
        length = blocks.length[s], rows = blocks.first[s + 1] - blocks.first[s];
        oldest = max(blocks.begin[s], length - PLACES);
        if (WINDOW) oldest = max(oldest, length - WINDOW + 1);
        first = oldest / KEYS;
        own = oldest < length ? (length + KEYS - 1) / KEYS : first;
        steps = (own - first + SPLITS) / SPLITS;
        parts = (own - first + steps) / steps;
    }
};
