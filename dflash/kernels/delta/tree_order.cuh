// Order in which the consumers visit the rows of a tree, and where they find the state after a row's parent.
//
// The order is depth first. Of the children of a row, the leaves come first, since they do not change the state. The other
// children follow from the last to the first, so that the longest branch usually comes last. A row with several children
// that are not leaves saves its state if a slot is free; rows below the last of these children may overwrite it. Without a
// slot the state is recomputed from the nearest saved state above the row. Neither way changes a bit of a state.
//
// Macros: those of smem.cuh.
#pragma once
#include "pipeline.cuh"

constexpr int CONTINUE = -2, COMMITTED = -1;

struct TreeOrder {
    u64 path[MAX_ROWS], children[MAX_ROWS];     // a row and its ancestors; its children
    int size[MAX_ROWS], rank_offset[MAX_ROWS];  // rows of its subtree; visits from its parent's to its own
    u64 saved, leaves, roots;                   // rows whose state is saved; leaves; rows without a parent
    u64 switches;                               // bit n: before visit n a state is saved or restored
    u64 later;                                  // rows, but no leaves, with a sibling that is no leaf and is visited later
    signed char order[MAX_ROWS];                // row of visit n
    signed char position[MAX_ROWS];             // visit of a row
    signed char start[MAX_ROWS];                // row whose saved state is restored, or CONTINUE, or COMMITTED
    signed char parent[MAX_ROWS];
    alignas(8) signed char above[MAX_ROWS][8];  // ancestors, nearest first; beyond the root -1, -2...
    signed char saved_slot[MAX_ROWS];
};

__device__ __forceinline__ int lowest(u64 mask) { return __ffsll((long long)mask) - 1; }
__device__ __forceinline__ int highest(u64 mask) { return 63 - __clzll((long long)mask); }
__device__ __forceinline__ void set_bit(u64& mask, int bit) { atomicOr((u32*)&mask + bit / 32, 1u << bit % 32); }

// Fill `tree` for n rows. Called by all producer threads: thread `row` passes the parent `above` of its row.
__device__ __forceinline__ void plan_order(TreeOrder& tree, int row, int above, int n, int saved_capacity) {
    const bool has_row = row < n;
    const u64 bit = 1ull << row % 64, after = ~(bit | (bit - 1));
    const auto sync_producers = [] { named_barrier_sync<32 * PRODUCER_WARPS>(2); };
    if (row == 0) tree.saved = tree.later = tree.leaves = tree.switches = tree.roots = 0;
    if (row < MAX_ROWS) tree.parent[row] = (signed char)above, tree.children[row] = 0, tree.size[row] = 0;
    sync_producers();
    u64 path = 0;
    if (has_row) {
        set_bit(above >= 0 ? tree.children[above] : tree.roots, row);
        int up = row;
        UNROLL for (int t = 0; t < TAPS - 1; ++t) {
            up = up >= 0 ? tree.parent[up] : up - 1;
            tree.above[row][t] = (signed char)up;
        }
#pragma unroll 1
        for (int i = row; i >= 0; i = tree.parent[i]) path |= 1ull << i, atomicAdd(tree.size + i, 1);
        tree.path[row] = path;
    }
    sync_producers();
    const u64 children = has_row ? tree.children[row] : 0,
              siblings = has_row ? above >= 0 ? tree.children[above] : tree.roots : 0;
    if (has_row && children == 0) set_bit(tree.leaves, row);
    sync_producers();
    const u64 leaves = tree.leaves;
    if (has_row) {
        int offset = 1 + __popcll(siblings & leaves & (children ? ~0ull : after));
        for (u64 visited_before = children ? siblings & ~leaves & after : 0; visited_before;
             visited_before &= visited_before - 1) {
            offset += tree.size[lowest(visited_before)];
        }
        tree.rank_offset[row] = offset;
        if (above >= 0 && children && (siblings & ~leaves & (bit - 1))) set_bit(tree.later, row);
    }
    sync_producers();
    int rank = -1;
    if (has_row) {
#pragma unroll 1
        for (int i = row; i >= 0; i = tree.parent[i]) rank += tree.rank_offset[i];
        tree.order[rank] = (signed char)row, tree.position[row] = (signed char)rank;
        const int saved_slot = __popcll(path & tree.later);
        tree.saved_slot[row] = (signed char)saved_slot;
        if (__popcll(children & ~leaves) > 1 && saved_slot < saved_capacity) set_bit(tree.saved, row);
    }
    sync_producers();
    if (has_row) {
        const int last = rank ? tree.order[rank - 1] : row;
        const int current = leaves >> last & 1 ? tree.parent[last] : last;  // row whose state is in the registers
        const u64 saved_above = above >= 0 ? tree.path[above] & tree.saved : 0;
        const bool continues = rank == 0 || current == above;
        tree.start[row] = (signed char)(continues ? CONTINUE : saved_above ? highest(saved_above) : COMMITTED);
        if (!continues || (rank && tree.saved >> last & 1)) set_bit(tree.switches, rank);
    }
    sync_producers();
}

// Flags of a visit: the row is a leaf; a state is saved or restored before the next visit; the row is the last of its stage.
constexpr int LEAF = 1, THEN_SWITCH = 2, THEN_STOP = 4;

__device__ __forceinline__ int flags_of(const TreeOrder& tree, bool chain, int position, int row, int n) {
    const int stop = (position + 1) % STAGE_ROWS == 0 || position + 1 == n ? THEN_STOP : 0;
    if (chain) return stop;
    const bool leaf = tree.leaves >> row & 1, switches = position + 1 < n && tree.switches >> (position + 1) & 1;
    return stop | (leaf ? LEAF : 0) | (switches ? THEN_SWITCH : 0);
}

// Ancestors of a row of a chain, a byte each as in `TreeOrder::above`.
__device__ __forceinline__ u64 above_in_chain(int row) {
    u64 above = 0;
    UNROLL for (int t = 0; t < TAPS - 1; ++t) above |= (u64)((row - 1 - t) & 255) << 8 * t;
    return above;
}
