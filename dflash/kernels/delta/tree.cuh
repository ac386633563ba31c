// In which order a block visits the rows of a tree, and where the state of a row's parent is found.
//
// Depth first: of the children of a row first those without children, which leave the state as it was, then the others
// from the last to the first, so that mostly the longest branch comes last. A row with several such others puts its state
// aside if there is a place; what is below the last of them may take that place over. Where there is none, the state is made
// again from the one put aside last above it. Neither changes any bit of a state.
#pragma once

constexpr int GO_ON = -2, COMMITTED = -1;

struct Tree {
    u64 path[MOST_ROWS], children[MOST_ROWS];    // a row and those above it; those right below it
    int size[MOST_ROWS], later_by[MOST_ROWS];    // rows at and below it; how much later it is visited than its parent
    u64 aside, leaves, roots;                    // rows whose state is put aside; without children; without parents
    u64 apart;                                   // bit n: for the n-th visit a state is put aside or fetched
    u64 later;                                   // other rows of which a sibling with children is visited later
    signed char order[MOST_ROWS];                // the n-th row that is visited
    signed char position[MOST_ROWS];             // when a row is visited
    signed char start[MOST_ROWS];                // the row to start from when the row is visited, or GO_ON, or COMMITTED
    signed char parent[MOST_ROWS];
    alignas(8) signed char above[MOST_ROWS][8];  // 1, 2... rows up; beyond the root -1, -2...
    signed char place[MOST_ROWS];
};

__device__ __forceinline__ int lowest(u64 mask) { return __ffsll((long long)mask) - 1; }
__device__ __forceinline__ int highest(u64 mask) { return 63 - __clzll((long long)mask); }
__device__ __forceinline__ void set_bit(u64& mask, int bit) { atomicOr((u32*)&mask + bit / 32, 1u << bit % 32); }

// Fill `tree` for n rows, by the makers: thread `row` of them knows the row's parent `above`.
__device__ __forceinline__ void plan(Tree& tree, int row, int above, int n, int places) {
    const bool mine = row < n;
    const u64 bit = 1ull << row % 64, after = ~(bit | (bit - 1));
    const auto all = [] { named_barrier_sync<32 * MAKERS>(2); };
    if (row == 0) tree.aside = tree.later = tree.leaves = tree.apart = tree.roots = 0;
    if (row < MOST_ROWS) tree.parent[row] = (signed char)above, tree.children[row] = 0, tree.size[row] = 0;
    all();
    u64 path = 0;
    if (mine) {
        set_bit(above >= 0 ? tree.children[above] : tree.roots, row);
        int up = row;
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            up = up >= 0 ? tree.parent[up] : up - 1;
            tree.above[row][t] = (signed char)up;
        }
#pragma unroll 1
        for (int i = row; i >= 0; i = tree.parent[i]) path |= 1ull << i, atomicAdd(tree.size + i, 1);
        tree.path[row] = path;
    }
    all();
    const u64 children = mine ? tree.children[row] : 0, siblings = mine ? above >= 0 ? tree.children[above] : tree.roots : 0;
    if (mine && children == 0) set_bit(tree.leaves, row);
    all();
    const u64 leaves = tree.leaves;
    if (mine) {
        int by = 1 + __popcll(siblings & leaves & (children ? ~0ull : after));
        for (u64 before = children ? siblings & ~leaves & after : 0; before; before &= before - 1) {
            by += tree.size[lowest(before)];
        }
        tree.later_by[row] = by;
        if (above >= 0 && children && (siblings & ~leaves & (bit - 1))) set_bit(tree.later, row);
    }
    all();
    int rank = -1;
    if (mine) {
#pragma unroll 1
        for (int i = row; i >= 0; i = tree.parent[i]) rank += tree.later_by[i];
        tree.order[rank] = (signed char)row, tree.position[row] = (signed char)rank;
        const int place = __popcll(path & tree.later);
        tree.place[row] = (signed char)place;
        if (__popcll(children & ~leaves) > 1 && place < places) set_bit(tree.aside, row);
    }
    all();
    if (mine) {
        const int last = rank ? tree.order[rank - 1] : row;
        const int holds = leaves >> last & 1 ? tree.parent[last] : last;  // whose state is at hand
        const u64 found = above >= 0 ? tree.path[above] & tree.aside : 0;
        const bool goes_on = rank == 0 || holds == above;
        tree.start[row] = (signed char)(goes_on ? GO_ON : found ? highest(found) : COMMITTED);
        if (!goes_on || (rank && tree.aside >> last & 1)) set_bit(tree.apart, rank);
    }
    all();
}

// What a visitor has to know of the visit number `position`, that of `row`: whether it has no children, whether a state is
// put aside or fetched before the next one, and whether it is the last of its group.
constexpr int LEAF = 1, THEN_APART = 2, THEN_STOP = 4;

__device__ __forceinline__ int flags_of(const Tree& tree, bool chain, int position, int row, int n) {
    const int stop = (position + 1) % GROUP == 0 || position + 1 == n ? THEN_STOP : 0;
    if (chain) return stop;
    const bool leaf = tree.leaves >> row & 1, apart = position + 1 < n && tree.apart >> (position + 1) & 1;
    return stop | (leaf ? LEAF : 0) | (apart ? THEN_APART : 0);
}

// The rows above a row of a chain, a byte each as in `Tree::above`.
__device__ __forceinline__ u64 above_in_chain(int row) {
    u64 above = 0;
#pragma unroll
    for (int t = 0; t < TAPS - 1; ++t) above |= (u64)((row - 1 - t) & 255) << 8 * t;
    return above;
}
