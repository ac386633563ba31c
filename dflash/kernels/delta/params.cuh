// Parameters of the parts of step.cu: the arrays, the block, and the sequence that the block is processing.
//
// Macros: those of smem.cuh and stored_rows.cuh.
#pragma once
#include "../gpu/include/signals.cuh"
#include "stored_rows.cuh"
#include "tree_order.cuh"

struct Arrays {
    const float *mixed, *gate, *taps, *ssm_norm;
    float eps;
    float *tail, *inputs, *k, *u, *decay;
    int* readers;
    unsigned short* out;
    float* read_out;
    const PeerTable* peers;  // of a tensor split: where the results go, in place of `out`
};

struct Block {
    int part, head, group, channel;  // `channel`: first value channel of the block, counted over all heads
    bool writes_keys;

    __device__ __forceinline__ Block(int part, int head)
        : part(part),
          head(head),
          group(key_head(head)),
          channel(head * VALUE_DIM + part * BLOCK_V),
          writes_keys(is_first_of_group(head) && part == 0) {}
};

// A producer thread: `number` of its warp among the producer warps, `row` of the thread among all producer threads.
struct Producer {
    int number, row, lane;
};

// A sequence as the batch describes it. `buffer`: pending buffer of the previous pass, 0 or 1, plus twice the row of that
// buffer from which on this pass writes; without such a row this pass writes the other buffer. With one, the accepted rows are
// kept: the states stay as they are, and the next pass applies the same rows again. The rows of the sequence are then a chain.
struct SequenceInfo {
    int start, end, slot, n_accepted, buffer;
    AcceptedRows accepted;

    __device__ __forceinline__ void load(const int* first, const int* slots, const int* counts, const int* buffers,
                                         const int* rows, int s) {
        start = first[s], end = first[s + 1], slot = slots[s], n_accepted = counts[s], buffer = buffers[s];
        accepted.load(rows + s * PENDING);
    }
};

struct Sequence {
    int index, start, n_rows, n_stages, n_accepted;
    size_t slot, prev, curr;  // `prev`, `curr`: first pending row of the slot in the previous and in this pass
    AcceptedRows accepted;
    u32 phases;
    bool kept;

    __device__ __forceinline__ Sequence(const SequenceInfo& of, int index, int slots, u32 phases)
        : index(index),
          start(of.start),
          n_rows(of.end - of.start),
          n_stages((of.end - of.start + STAGE_ROWS - 1) / STAGE_ROWS),
          n_accepted(of.n_accepted),
          slot(of.slot),
          prev((size_t)((of.buffer & 1) * slots + of.slot) * STORED_ROWS),
          curr(of.buffer >> 1 ? prev + (of.buffer >> 1) : (size_t)((1 - of.buffer) * slots + of.slot) * STORED_ROWS),
          accepted(of.accepted),
          phases(phases),
          kept(of.buffer >> 1) {}

    // Whether the accepted rows become part of the states.
    __device__ __forceinline__ bool writes_states() const { return n_accepted && !kept; }
};

// Row of visit `position`.
__device__ __forceinline__ int row_at(const TreeOrder& tree, bool chain, int position) {
    return chain ? position : (int)tree.order[position];
}
