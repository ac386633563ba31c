// What becomes of rows that are visited: they are normed, and what they change is kept.
#pragma once

__device__ __forceinline__ void norm_rows(const Arrays& arrays, const Shared& shared, const Block& block, const Pass& pass,
                                          const Maker& maker, const Tree& tree, bool chain, const Groups& groups,
                                          Exchange& exchange, int& turn) {
    const int two = 2 * maker.lane;
    float2 gain = make_float2(0.0f, 0.0f);
    if (FUSED && two < OWN) gain = *(const float2*)(arrays.ssm_norm + block.part * OWN + two);
#pragma unroll 1
    for (int i = maker.number; i < pass.n_rows; i += MAKERS) {
        mbarrier_wait_warp(groups.visited + i / GROUP, pass.used >> i / GROUP & 1);
        const float* const reads = shared.reads + i * OWN;
        const size_t of_row = block.channel + two, row = row_at(tree, chain, i);
        float2 read = make_float2(0.0f, 0.0f);
        if (two < OWN) {
            read = *(const float2*)(reads + two);
            const float2 change = *(const float2*)(shared.rows + i * LOCAL + 2 * WIDTH + two);
            *(float2*)(arrays.u + (pass.now + row) * HEADS * VALUES + of_row) = change;
            if (!FUSED) *(float2*)(arrays.read_out + (pass.start + row) * HEADS * VALUES + of_row) = read;
        }
        if (!FUSED) continue;
        float sum = 0.0f;
#pragma unroll
        for (int v = 0; v < OWN; v += 32) {
            const float one = OWN % 32 == 0 || v + maker.lane < OWN ? reads[v + maker.lane] : 0.0f;
            sum = __fmaf_rn(one, one, sum);
        }
        sum = warp_sum(sum);
        if (CLUSTERED) sum = exchange.sum(maker.number, turn++, block.part, sum);
        if (two >= OWN) continue;
        const float factor = rsqrtf(sum * (1.0f / VALUES) + arrays.eps);
        const float2 z = *(const float2*)(shared.gates + row * OWN + two);
        const u32 low = half_saturated(read.x * factor * gain.x * silu_fast(z.x));
        const u32 both = low | (u32)half_saturated(read.y * factor * gain.y * silu_fast(z.y)) << 16;
        *(u32*)(arrays.out + (pass.start + row) * HEADS * VALUES + of_row) = both;
    }
}
