// Split-KV of a block of draft rows: the context in tiles of TILE_KV positions, then one tile for the block itself, in at
// most MAX_SPLITS splits of equal size.
//
// Position p of the context is row p % RING_SIZE of the ring; tiles begin at multiples of TILE_KV. Macros: RING_SIZE,
// positions of a ring; WINDOW, positions of a sliding window, 0 for none; TILE_KV; MAX_SPLITS.
#pragma once

#if !defined(RING_SIZE) || !defined(WINDOW) || !defined(TILE_KV) || !defined(MAX_SPLITS)
#error "RING_SIZE, WINDOW, TILE_KV and MAX_SPLITS must be defined"
#endif
static_assert(RING_SIZE >= TILE_KV && TILE_KV >= 32, "a tile may wrap around the ring at most once, and must hold a block");

struct Blocks {
    const int *first, *begin, *length;
};

// The tiles of a sequence.
struct SequenceTiles {
    int oldest, length, rows;  // context positions oldest .. length - 1; rows of the block
    int first, own;            // first tile of the context; tile of the block, which is the last one
    int steps, n_splits;       // tiles of a split; splits

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
