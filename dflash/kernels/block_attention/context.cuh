// Keys and values of a block of draft rows, and the mask. The context of the sequence is in a ring buffer; the block's own
// keys and values follow. Both are read as tiles of TILE_KV positions.
//
// Macros: CAUSAL, 1 if rows of the block attend to earlier rows of the block only; those of split_kv.cuh and
// attention/mainloop.cuh.
#pragma once
#include "../attention/mainloop.cuh"
#include "split_kv.cuh"

#ifndef CAUSAL
#error "CAUSAL must be defined"
#endif

// Keys or values of one KV head.
struct KvSource {
    const u16 *ring, *block;  // start of the slot's ring; first row of the block
};

// Tiles begin .. end - 1 of a sequence; `own` is the tile of the block. Positions oldest .. length - 1 are in the ring;
// `rows`: rows of the block.
struct Context {
    int begin, end, own;
    int oldest, length, rows;
};

// Start to copy a tile to a stage. Positions outside of the context become zeros.
__device__ __forceinline__ void fetch_tile(u32 stage, const KvSource& from, const Context& context, int i) {
    const bool block = i == context.own;
    const int position = i * TILE_KV, ring_row = position % RING_SIZE;
#pragma unroll 2
    for (int n = threadIdx.x; n < TILE_KV * LINES; n += THREADS) {
        const int key = n / LINES, line = n % LINES;
        const int row = block ? key : ring_row + key < RING_SIZE ? ring_row + key : ring_row + key - RING_SIZE;
        const bool in_context =
            block ? key < context.rows : position + key >= context.oldest && position + key < context.length;
        const u16* const source =
            (block ? from.block : from.ring) + (size_t)(in_context ? row : 0) * (KV_HEADS * HEAD_DIM) + line * 8;
        cp_async_16_zfill(stage + swizzled<TILE_KV>(key, line), source, in_context);
    }
}

// Mask of the queries of a block. Query x belongs to row first + x / GROUP_SIZE.
struct BlockMask {
    Context context;
    int first;

    __device__ __forceinline__ bool needs_mask(int position) const {
        const int last = min(context.rows, first + MAX_ROWS) - 1;
        const int low = WINDOW ? max(context.oldest, context.length + last - WINDOW + 1) : context.oldest;
        return position < low || position + TILE_KV > context.length || position >= context.own * TILE_KV;
    }
};

__device__ __forceinline__ void apply_mask(float (&s)[SCORES][4], int position, const BlockMask& mask) {
    const Context& context = mask.context;
    UNROLL for (int h = 0; h < 2; ++h) {
        const int row = min(mask.first + query_index(h) / GROUP_SIZE, context.rows - 1);
        int low, high;  // keys low .. high - 1 of the tile are visible
        if (position >= context.own * TILE_KV) {
            low = WINDOW ? row - WINDOW + 1 : 0, high = CAUSAL   ? row + 1
                                                        : WINDOW ? min(context.rows, row + WINDOW)
                                                                 : context.rows;
        } else {
            low = WINDOW ? max(context.oldest, context.length + row - WINDOW + 1) : context.oldest, high = context.length;
            low -= position, high -= position;
        }
        low -= threadIdx.x % 4 * 2, high -= threadIdx.x % 4 * 2;
        UNROLL for (int n = 0; n < SCORES; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                if (8 * n + e < low || 8 * n + e >= high) s[n][2 * h + e] = MINUS_INFINITY;
            }
    }
}
