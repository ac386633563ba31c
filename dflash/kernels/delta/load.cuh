// Producer warps: copies of taps, inputs and gates to shared memory.
#pragma once
#include "params.cuh"

// Start to copy the taps, then the left context of the first row: accepted rows of the previous pass, then the conv state.
__device__ __forceinline__ void load_taps(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                          const Producer& producer) {
    const float* const slot_tail = arrays.tail + seq.slot * (TAPS - 1) * CHANNELS;
    const int x = 4 * producer.lane;
#pragma unroll 1
    for (int t = producer.number; t < 2 * TAPS - 1; t += PRODUCER_WARPS) {
        const int at = seq.n_accepted - (2 * TAPS - 1 - t), id = seq.accepted.at(max(at, 0));
        const float* const from = t < TAPS  ? arrays.taps + t * CHANNELS
                                  : at >= 0 ? arrays.inputs + (seq.prev + id) * CHANNELS
                                            : slot_tail + (TAPS - 1 + at) * CHANNELS;
        float* const line = smem.taps + t * BLOCK_CHANNELS + x;
        if (x < KEY_DIM) {
            cp_async_16(smem_address(line), from + block.group * KEY_DIM + x);
            cp_async_16(smem_address(line + KEY_DIM), from + (KEY_HEADS + block.group) * KEY_DIM + x);
        }
        if (x < BLOCK_V) cp_async_16(smem_address(line + 2 * KEY_DIM), from + 2 * KEY_HEADS * KEY_DIM + block.channel + x);
    }
    cp_async_commit_group();
}

// Start to copy the inputs (if STAGE_INPUTS) and the norm's gates (if FUSE_NORM) of all rows. The copies of a stage complete
// on its barrier `loaded`.
__device__ __forceinline__ void load_rows(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                          const Producer& producer, const Pipeline& pipeline) {
    const int x = 4 * producer.lane, gate_x = x - BLOCK_V;
    const bool is_key = STAGE_INPUTS && x < KEY_DIM, is_value = STAGE_INPUTS && x < BLOCK_V,
               is_gate = FUSE_NORM && gate_x >= 0 && gate_x < BLOCK_V;
    const float* const keys = arrays.mixed + (size_t)seq.start * CHANNELS + block.group * KEY_DIM + x;
    const float* const values = arrays.mixed + (size_t)seq.start * CHANNELS + 2 * KEY_HEADS * KEY_DIM + block.channel + x;
    const float* const from =
        is_gate ? arrays.gate + (size_t)seq.start * VALUE_HEADS * VALUE_DIM + block.channel + gate_x : values;
    const u32 to_keys = smem_address(smem.inputs + x),
              to = is_gate ? smem_address(smem.norm_gates + gate_x) : to_keys + 8 * KEY_DIM;
#pragma unroll 1
    for (int i = producer.number; i < STAGE_ROWS * seq.n_stages; i += PRODUCER_WARPS) {
        if (i < seq.n_rows) {
            const int line = i * 4 * BLOCK_CHANNELS;
            if (is_key) {
                cp_async_16(to_keys + line, keys + i * CHANNELS);
                cp_async_16(to_keys + line + 4 * KEY_DIM, keys + i * CHANNELS + KEY_HEADS * KEY_DIM);
            }
            if (is_value) cp_async_16(to + line, from + i * CHANNELS);
            if (is_gate) cp_async_16(to + i * 4 * BLOCK_V, from + i * VALUE_HEADS * VALUE_DIM);
        }
        cp_async_mbarrier_arrive(smem_address(pipeline.loaded + i / STAGE_ROWS));
    }
}
