// What the rows of a block see: the context of their sequence in a ring, and the block itself, as tiles of KEYS positions.
//
// Macros: CAUSAL, beside those of cut.cuh, attention/tiles.cuh and attention/flash.cuh.
#pragma once
#include "../attention/together.cuh"
#include "cut.cuh"

#ifndef CAUSAL
#error "CAUSAL must be defined"
#endif

// Where keys or values lie.
struct Sources {
    const u16 *ring, *block;  // of the slot and head, of the sequence's first row and head
};

// Tiles begin ... of a sequence.
struct Context {
    int begin, end, own;
    int oldest, length, rows;
};

// Copy a tile to a slot; zeros for what nobody may see.
__device__ __forceinline__ void fetch_tile(u32 slot, const Sources& from, const Context& context, int i) {
    const bool block = i == context.own;
    const int position = i * KEYS, place_of_first = position % PLACES;
#pragma unroll 2
    for (int n = threadIdx.x; n < KEYS * LINES; n += THREADS) {
        const int key = n / LINES, line = n % LINES;
        const int row = block ? key : place_of_first + key < PLACES ? place_of_first + key : place_of_first + key - PLACES;
        const bool is_there =
            block ? key < context.rows : position + key >= context.oldest && position + key < context.length;
        const u16* const source = (block ? from.block : from.ring) + (size_t)(is_there ? row : 0) * (KV * HEAD) + line * 8;
        cp_async_16_zfill(slot + place<KEYS>(key, line), source, is_there);
    }
}

// Keys that the queries of a block see; query x is of row `first` + x / GROUP.
struct Band {
    Context context;
    int first;

    __device__ __forceinline__ bool is_partial(int position) const {
        const int last = min(context.rows, first + MOST_ROWS) - 1;
        const int low = WINDOW ? max(context.oldest, context.length + last - WINDOW + 1) : context.oldest;
        return position < low || position + KEYS > context.length || position >= context.own * KEYS;
    }
};

__device__ __forceinline__ void hide(float (&s)[SCORES][4], int position, const Band& band) {
    const Context& context = band.context;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row = min(band.first + query_of(h) / GROUP, context.rows - 1);
        int low, high;  // of the tile
        if (position >= context.own * KEYS) {
            low = WINDOW ? row - WINDOW + 1 : 0, high = CAUSAL ? row + 1 : WINDOW ? min(context.rows, row + WINDOW) : context.rows;
        } else {
            low = WINDOW ? max(context.oldest, context.length + row - WINDOW + 1) : context.oldest, high = context.length;
            low -= position, high -= position;
        }
        low -= threadIdx.x % 4 * 2, high -= threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < SCORES; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                if (8 * n + e < low || 8 * n + e >= high) s[n][2 * h + e] = NOTHING;
            }
    }
}
