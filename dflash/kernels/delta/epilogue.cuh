// Epilogue, by producer warps: out = half(o / rms(o) * weight * silu(gate)) for rows that the consumers have finished; also
// u, which the next pass needs to commit accepted rows.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/warp.cuh"
#include "cluster_sum.cuh"
#include "params.cuh"
#include "pipeline.cuh"

constexpr bool CLUSTERED = FUSE_NORM && SPLIT > 1;
using NormSums = ClusterSum<PRODUCER_WARPS>;

// Write the outputs of this warp's rows. `turn`: number of the next exchange of `cluster_sum`.
__device__ __forceinline__ void norm_rows(const Arrays& arrays, const Smem& smem, const Block& block, const Sequence& seq,
                                          const Producer& producer, const TreeOrder& tree, bool chain,
                                          const Pipeline& pipeline, NormSums& cluster_sum, int& turn) {
    const int two = 2 * producer.lane;
    float2 gain = make_float2(0.0f, 0.0f);
    if (FUSE_NORM && two < BLOCK_V) gain = *(const float2*)(arrays.ssm_norm + block.part * BLOCK_V + two);
#pragma unroll 1
    for (int i = producer.number; i < seq.n_rows; i += PRODUCER_WARPS) {
        mbarrier_wait_warp(pipeline.empty + i / STAGE_ROWS, seq.phases >> i / STAGE_ROWS & 1);
        const float* const reads = smem.reads + i * BLOCK_V;
        const size_t of_row = block.channel + two, row = row_at(tree, chain, i);
        float2 read = make_float2(0.0f, 0.0f);
        if (two < BLOCK_V) {
            read = *(const float2*)(reads + two);
            const float2 change = *(const float2*)(smem.rows + i * BLOCK_CHANNELS + 2 * KEY_DIM + two);
            *(float2*)(arrays.u + (seq.curr + row) * VALUE_HEADS * VALUE_DIM + of_row) = change;
            if (!FUSE_NORM) *(float2*)(arrays.read_out + (seq.start + row) * VALUE_HEADS * VALUE_DIM + of_row) = read;
        }
        if (!FUSE_NORM) continue;
        float sum = 0.0f;
        UNROLL for (int v = 0; v < BLOCK_V; v += 32) {
            const float one = BLOCK_V % 32 == 0 || v + producer.lane < BLOCK_V ? reads[v + producer.lane] : 0.0f;
            sum = __fmaf_rn(one, one, sum);
        }
        sum = warp_sum(sum);
        if (CLUSTERED) sum = cluster_sum.sum(producer.number, turn++, block.part, sum);
        if (two >= BLOCK_V) continue;
        const float factor = rsqrtf(__fmaf_rn(sum, 1.0f / VALUE_DIM, arrays.eps));
        const float2 z = *(const float2*)(smem.norm_gates + row * BLOCK_V + two);
        const u32 low = half_saturated(read.x * factor * gain.x * silu_fast(z.x));
        const u32 both = low | (u32)half_saturated(read.y * factor * gain.y * silu_fast(z.y)) << 16;
#if PEERS
        // the value heads of one key head are neighbours, or KEY_HEADS heads apart here and PEERS times as far in the whole row
        const size_t head =
            HEAD_RUN > 1 ? block.head : block.head / KEY_HEADS * (PEERS * KEY_HEADS) + block.head % KEY_HEADS;
        const size_t at = ((seq.start + row) * PEERS * VALUE_HEADS + head) * VALUE_DIM + block.part * BLOCK_V + two;
        UNROLL for (int d = 0; d < PEERS; ++d) store_to_peer((u32*)((u16*)arrays.peers->outs[d] + at), both);
#else
        *(u32*)(arrays.out + (seq.start + row) * VALUE_HEADS * VALUE_DIM + of_row) = both;
#endif
    }
}
