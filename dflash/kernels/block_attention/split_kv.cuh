// Split-KV of a block of draft rows: the context in tiles of TILE_KV positions, the block as one more tile after them; all in at
// most MAX_SPLITS splits of equal size.
//
// Position p of the context is row p % RING_SIZE of the ring, and tiles begin at multiples of TILE_KV.
// Macros: RING_SIZE, positions of a ring; WINDOW, 0 for none; TILE_KV; MAX_SPLITS.
#pragma once

#if !defined(RING_SIZE) || !defined(WINDOW) || !defined(TILE_KV) || !defined(MAX_SPLITS)
#error "RING_SIZE, WINDOW, TILE_KV and MAX_SPLITS must be defined"
#endif
static_assert(RING_SIZE >= TILE_KV && TILE_KV >= 32, "a tile goes round a ring at largest once; a block is a tile");

struct Blocks {
    const int *first, *begin, *length;
};

// The tiles of a sequence.
struct SequenceTiles {
    int oldest, length, rows;  // positions of the context, rows of the block
    int first, own;            // tiles: the first one of the context, the one of the block, which is the last
    int steps, n_splits;       // tiles of a part

    __device__ __forceinline__ SequenceTiles(const Blocks& blocks, int s) {
        length = blocks.length[s], rows = blocks.first[s + 1] - blocks.first[s];
        oldest = max(blocks.begin[s], length - RING_SIZE);
        if (WINDOW) oldest = max(oldest, length - WINDOW + 1);
        first = oldest / TILE_KV;
        own = oldest < length ? (length + TILE_KV - 1) / TILE_KV : first;
        steps = (own - first + MAX_SPLITS) / MAX_SPLITS;
        n_splits = (own - first + steps) / steps;
    }
};
