// What makers do for the visitors and for later passes: laws, rows, the tail of the text.
#pragma once

// The part of the memory that `row` keeps, how far it moves to its value, and its flags.
__device__ __forceinline__ void keep_law(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                         int row, const Tree& tree, bool chain, float part_kept, float strength) {
    const int position = chain ? row : (int)tree.position[row];
    shared.laws[4 * position] = part_kept, shared.laws[4 * position + 1] = strength;
    shared.laws[4 * position + 3] = __int_as_float(flags_of(tree, chain, position, row, pass.n_rows));
    if (block.part == 0) arrays.decay[(pass.now + row) * HEADS + block.head] = part_kept;
}

// Make the rows of a maker, in the order of visits.
__device__ __forceinline__ void make_rows(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                          const Maker& maker, const Tree& tree, bool chain, const Groups& groups) {
    const float* const mixed = arrays.mixed + (size_t)pass.start * CHANNELS;
    const float *const keys = mixed + block.group * WIDTH, *const values = mixed + 2 * GROUPS * WIDTH + block.channel;
    const Channels channels{maker.lane};
    Taps taps;
    taps.load(shared.taps, channels);
    int fetched = 0;
#pragma unroll 1
    for (int i = maker.number; i < GROUP * pass.n_groups; i += MAKERS) {
        for (const int last = chain ? i / GROUP : pass.n_groups - 1; fetched <= last; ++fetched) {
            mbarrier_wait_warp(groups.fetched + fetched, pass.used >> fetched & 1);
        }
        if (i < pass.n_rows) {
            const int row = row_at(tree, chain, i);
            float* const to = arrays.inputs + (pass.now + row) * CHANNELS;
            float* const key = arrays.k + ((pass.now + row) * GROUPS + block.group) * WIDTH;
            const Remembered remembered{block.keeps_keys ? to + block.group * WIDTH : nullptr,
                                        block.keeps_keys ? to + (GROUPS + block.group) * WIDTH : nullptr,
                                        to + 2 * GROUPS * WIDTH + block.channel,
                                        block.keeps_keys ? key : nullptr};
            const u64 above = chain ? above_in_chain(row) : *(const u64*)tree.above[row];
            make_row(taps, shared, keys, values, row, above, i, remembered, channels);
        }
        mbarrier_arrive(smem_address(groups.ready + i / GROUP));
    }
}

// What was text before the pass becomes its tail; of q and k, in the last block that read them.
__device__ __forceinline__ void move_tail(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                          const Maker& maker, int arrived, bool& moves_all) {
    float* const text = arrays.tail + pass.slot * (TAPS - 1) * CHANNELS;
    if (maker.row == 0) {
        moves_all = arrived == HEADS / GROUPS * SPLIT - 1;
        if (moves_all) arrays.readers[pass.sequence * GROUPS + block.group] = 0;
    }
    named_barrier_sync<32 * MAKERS>(2);
#pragma unroll 1
    for (int c = maker.row + (moves_all ? 0 : 2 * WIDTH); c < LOCAL; c += 32 * MAKERS) {
        const int to = c < 2 * WIDTH ? (c / WIDTH * GROUPS + block.group) * WIDTH + c % WIDTH
                                     : 2 * (GROUPS - 1) * WIDTH + block.channel + c;
#pragma unroll
        for (int t = 1; t < TAPS; ++t) text[(TAPS - 1 - t) * CHANNELS + to] = shared.inputs[c - t * LOCAL];
    }
}
