// What the parts of `step.cu` are told of their block, of the sequence that it is at, and of the arrays.
#pragma once

struct Arrays {
    const float *mixed, *gate, *taps, *ssm_norm;
    float eps;
    float *tail, *inputs, *k, *u, *decay;
    int* readers;
    unsigned short* out;
    float* read_out;
};

struct Block {
    int part, head, group, channel;  // `channel` is of all heads' values the block's first
    bool keeps_keys;

    __device__ __forceinline__ Block(int part, int head)
        : part(part), head(head), group(head % GROUPS), channel(head * VALUES + part * OWN),
          keeps_keys(head < GROUPS && part == 0) {}
};

// A warp that makes rows, a thread of all makers, a lane.
struct Maker {
    int number, row, lane;
};

// What a batch says of a sequence.
struct Described {
    int start, end, slot, n_before, side;
    Ids ids;

    __device__ __forceinline__ void load(const int* first, const int* slots, const int* n_kept, const int* sides,
                                         const int* kept, int s) {
        start = first[s], end = first[s + 1], slot = slots[s], n_before = n_kept[s], side = sides[s];
        ids.load(kept + s * PENDING);
    }
};

struct Pass {
    int sequence, start, n_rows, n_groups, n_before;
    size_t slot, old, now;  // `old` and `now`: the slot's first pending row of the pass before and of this one
    Ids ids;
    u32 used;

    __device__ __forceinline__ Pass(const Described& of, int sequence, int slots, u32 used)
        : sequence(sequence), start(of.start), n_rows(of.end - of.start), n_groups((of.end - of.start + GROUP - 1) / GROUP),
          n_before(of.n_before), slot(of.slot), old((size_t)(of.side * slots + of.slot) * PENDING),
          now((size_t)((1 - of.side) * slots + of.slot) * PENDING), ids(of.ids), used(used) {}
};

__device__ __forceinline__ int row_at(const Tree& tree, bool chain, int position) {
    return chain ? position : (int)tree.order[position];
}
