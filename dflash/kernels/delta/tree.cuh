// In which order a block visits the rows of a tree, and where the state of a row's parent is found.
//
// Depth first: of the children of a row first those without children, which leave the state as it was, then the others
// from the last to the first, so that mostly the longest branch comes last. A row with several such others puts its state
// aside if there is a place; what is below the last of them may take that place over. Where there is none, the state is made
// again from the one put aside last above it. Neither changes any bit of a state.
#pragma once

constexpr int MOST_ROWS = 64, GO_ON = -2, COMMITTED = -1;

struct Tree {
    u64 path[MOST_ROWS];              // a row and those above it
    u64 aside, leaves;                // rows whose state is put aside; rows without children
    u64 apart;                        // bit n: for the n-th visit a state is put aside or fetched
    u64 later;                        // other rows of which a sibling with children is visited later
    signed char order[MOST_ROWS];     // the n-th row that is visited
    signed char start[MOST_ROWS];     // the row to start from when the row is visited, or GO_ON, or COMMITTED
    signed char parent[MOST_ROWS];
    alignas(8) signed char above[MOST_ROWS][8];  // 1, 2... rows up; beyond the root -1, -2...
    signed char place[MOST_ROWS];
};

__device__ __forceinline__ int lowest(u64 mask) { return __ffsll((long long)mask) - 1; }
__device__ __forceinline__ int highest(u64 mask) { return 63 - __clzll((long long)mask); }

// Fill `tree` for n rows; all threads of the block call it, at least 64.
__device__ __forceinline__ void plan(Tree& tree, const int* parents, int n, int places) {
    const int row = threadIdx.x;
    const bool mine = row < n;
    const int above = mine ? parents[row] : -1;
    const u64 bit = 1ull << row % 64;
    if (row == 0) tree.aside = tree.later = tree.leaves = tree.apart = 0;
    if (row < MOST_ROWS) tree.parent[row] = (signed char)(mine ? above : -3);
    __syncthreads();
    u64 path = 0, children = 0, siblings = 0;
    if (mine) {
        int up = row;
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            up = up >= 0 ? tree.parent[up] : up - 1;
            tree.above[row][t] = (signed char)up;
        }
        for (int i = row; i >= 0; i = tree.parent[i]) path |= 1ull << i;
        tree.path[row] = path;
#pragma unroll 8
        for (int i = 0; i < MOST_ROWS; ++i) {
            const int other = tree.parent[i];
            children |= (u64)(other == row) << i, siblings |= (u64)(other == above) << i;
        }
        if (children == 0) atomicOr((u32*)&tree.leaves + row / 32, 1u << row % 32);
    }
    __syncthreads();
    const u64 leaves = tree.leaves;
    if (mine && above >= 0 && children && (siblings & ~leaves & (bit - 1))) {
        atomicOr((u32*)&tree.later + row / 32, 1u << row % 32);
    }
    __syncthreads();
    int rank = 0;
    if (mine) {
#pragma unroll 4
        for (int i = 0; i < n; ++i) {
            const u64 theirs = tree.path[i], only_theirs = theirs & ~path, only_mine = path & ~theirs;
            // Where the paths part, the lowest bits are siblings.
            const u64 their_top = only_theirs & -only_theirs, my_top = only_mine & -only_mine;
            const bool their_leaf = leaves & their_top, my_leaf = leaves & my_top;
            const bool first = their_leaf != my_leaf ? their_leaf : my_top < their_top;
            rank += i != row & (only_theirs == 0 | (only_mine != 0 & first));
        }
        tree.order[rank] = (signed char)row;
        const int place = __popcll(path & tree.later);
        tree.place[row] = (signed char)place;
        if (__popcll(children & ~leaves) > 1 && place < places) atomicOr((u32*)&tree.aside + row / 32, 1u << row % 32);
    }
    __syncthreads();
    if (mine) {
        const int last = rank ? tree.order[rank - 1] : row;
        const int holds = leaves >> last & 1 ? tree.parent[last] : last;  // whose state is at hand
        const u64 found = above >= 0 ? tree.path[above] & tree.aside : 0;
        const bool goes_on = rank == 0 || holds == above;
        tree.start[row] = (signed char)(goes_on ? GO_ON : found ? highest(found) : COMMITTED);
        if (!goes_on || (rank && tree.aside >> last & 1)) atomicOr((u32*)&tree.apart + rank / 32, 1u << rank % 32);
    }
    __syncthreads();
}
