// Producer warps: gates, rows and the conv state.
#pragma once
#include "conv_row.cuh"
#include "params.cuh"

// Store decay, beta and flags of `row` for the consumers, and its decay for the next pass.
__device__ __forceinline__ void store_gates(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                            int row, const TreeOrder& tree, bool chain, float decay, float beta) {
    const int position = chain ? row : (int)tree.position[row];
    smem.gates[4 * position] = decay, smem.gates[4 * position + 1] = beta;
    smem.gates[4 * position + 3] = __int_as_float(flags_of(tree, chain, position, row, seq.n_rows));
    if (block.part == 0) arrays.decay[(seq.curr + row) * VALUE_HEADS + block.head] = decay;
}

// Produce the rows of a warp, in the order of visits.
__device__ __forceinline__ void produce_rows(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                             const Producer& producer, const TreeOrder& tree, bool chain,
                                             const Pipeline& pipeline) {
    const float* const mixed = arrays.mixed + (size_t)seq.start * CHANNELS;
    const float *const keys = mixed + block.group * KEY_DIM, *const values = mixed + 2 * KEY_HEADS * KEY_DIM + block.channel;
    const Channels channels{producer.lane};
    Taps taps;
    taps.load(smem.taps, channels);
    int loaded = 0;
#pragma unroll 1
    for (int i = producer.number; i < STAGE_ROWS * seq.n_stages; i += PRODUCER_WARPS) {
        for (const int last = chain ? i / STAGE_ROWS : seq.n_stages - 1; loaded <= last; ++loaded) {
            mbarrier_wait_warp(pipeline.loaded + loaded, seq.phases >> loaded & 1);
        }
        if (i < seq.n_rows) {
            const int row = row_at(tree, chain, i);
            float* const to = arrays.inputs + (seq.curr + row) * CHANNELS;
            float* const key = arrays.k + ((seq.curr + row) * KEY_HEADS + block.group) * KEY_DIM;
            const RowOutputs outputs{block.writes_keys ? to + block.group * KEY_DIM : nullptr,
                                     block.writes_keys ? to + (KEY_HEADS + block.group) * KEY_DIM : nullptr,
                                     to + 2 * KEY_HEADS * KEY_DIM + block.channel, block.writes_keys ? key : nullptr};
            const u64 above = chain ? above_in_chain(row) : *(const u64*)tree.above[row];
            conv_row(taps, smem, keys, values, row, above, i, outputs, channels);
        }
        mbarrier_arrive(smem_address(pipeline.full + i / STAGE_ROWS));
    }
}

// Update the conv state with the accepted rows. Several heads read the channels of q and k: the last block to arrive updates
// these.
__device__ __forceinline__ void move_tail(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                          const Producer& producer, int arrived, bool& moves_all) {
    float* const slot_tail = arrays.tail + seq.slot * (TAPS - 1) * CHANNELS;
    if (producer.row == 0) {
        moves_all = arrived == VALUE_HEADS / KEY_HEADS * SPLIT - 1;
        if (moves_all) arrays.readers[seq.index * KEY_HEADS + block.group] = 0;
    }
    named_barrier_sync<32 * PRODUCER_WARPS>(2);
#pragma unroll 1
    for (int c = producer.row + (moves_all ? 0 : 2 * KEY_DIM); c < BLOCK_CHANNELS; c += 32 * PRODUCER_WARPS) {
        const int to = c < 2 * KEY_DIM ? (c / KEY_DIM * KEY_HEADS + block.group) * KEY_DIM + c % KEY_DIM
                                       : 2 * (KEY_HEADS - 1) * KEY_DIM + block.channel + c;
        UNROLL for (int t = 1; t < TAPS; ++t)
            slot_tail[(TAPS - 1 - t) * CHANNELS + to] = smem.inputs[c - t * BLOCK_CHANNELS];
    }
}
