// What makers copy to shared memory.
#pragma once

// The taps, and the inputs above the first row: rows of the pass before that are text now, then the tail of the text.
__device__ __forceinline__ void fetch_taps(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                           const Maker& maker) {
    const float* const text = arrays.tail + pass.slot * (TAPS - 1) * CHANNELS;
    const int x = 4 * maker.lane;
#pragma unroll 1
    for (int t = maker.number; t < 2 * TAPS - 1; t += MAKERS) {
        const int at = pass.n_before - (2 * TAPS - 1 - t), id = pass.ids.at(max(at, 0));
        const float* const from = t < TAPS  ? arrays.taps + t * CHANNELS
                                  : at >= 0 ? arrays.inputs + (pass.old + id) * CHANNELS
                                            : text + (TAPS - 1 + at) * CHANNELS;
        float* const line = shared.taps + t * LOCAL + x;
        if (x < WIDTH) {
            cp_async_16(smem_address(line), from + block.group * WIDTH + x);
            cp_async_16(smem_address(line + WIDTH), from + (GROUPS + block.group) * WIDTH + x);
        }
        if (x < OWN) cp_async_16(smem_address(line + 2 * WIDTH), from + 2 * GROUPS * WIDTH + block.channel + x);
    }
    cp_async_commit_group();
}

// The rows' inputs, if STAGED, and gates; the barriers of their groups tell when they have come.
__device__ __forceinline__ void fetch_rows(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                           const Maker& maker, const Groups& groups) {
    const int x = 4 * maker.lane, of_gate = x - OWN;
    const bool is_key = STAGED && x < WIDTH, is_value = STAGED && x < OWN, is_gate = FUSED && of_gate >= 0 && of_gate < OWN;
    const float* const keys = arrays.mixed + (size_t)pass.start * CHANNELS + block.group * WIDTH + x;
    const float* const values = arrays.mixed + (size_t)pass.start * CHANNELS + 2 * GROUPS * WIDTH + block.channel + x;
    const float* const from = is_gate ? arrays.gate + (size_t)pass.start * HEADS * VALUES + block.channel + of_gate : values;
    const u32 to_keys = smem_address(shared.inputs + x), to = is_gate ? smem_address(shared.gates + of_gate) : to_keys + 8 * WIDTH;
#pragma unroll 1
    for (int i = maker.number; i < GROUP * pass.n_groups; i += MAKERS) {
        if (i < pass.n_rows) {
            const int line = i * 4 * LOCAL;
            if (is_key) {
                cp_async_16(to_keys + line, keys + i * CHANNELS);
                cp_async_16(to_keys + line + 4 * WIDTH, keys + i * CHANNELS + GROUPS * WIDTH);
            }
            if (is_value) cp_async_16(to + line, from + i * CHANNELS);
            if (is_gate) cp_async_16(to + i * 4 * OWN, from + i * HEADS * VALUES);
        }
        cp_async_mbarrier_arrive(smem_address(groups.fetched + i / GROUP));
    }
}
