// Sample a token of each row with noise but without top-k and top-p: argmax(scaled + noise). `row_stats` has run before. Other rows
// are not written.
//
// Grid (blocks of a row, rows), block THREADS. A thread samples four tokens at a time, which share a Philox counter. Most tokens need
// no logarithms: the noise is below n with probability exp(-exp(-n)), so a random word that is too large for the logit of its token
// to win is skipped, with a margin of 1 %.
// Macros: VOCAB, THREADS. Bytes: 4 * VOCAB a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
draw(const float* logits, const int* laws, const float* largest, unsigned long long* best, unsigned* arrived, int* ids) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y;
    const SampleParams law = ((const SampleParams*)laws)[row];
    const float highest = largest[row];
    if (law.scale <= 0.0f || selects(law)) return;
    if (is_invalid(highest)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) ids[row] = -1;
        return;
    }
    logits += (size_t)row * VOCAB;
    const float floor = fmaxf(law.floor, MIN_SCALED);
    float beaten = gumbel(ids[row], law.position, law.seed);  // the key of the largest logit
    u64 mine = blockIdx.x == 0 && threadIdx.x == 0 ? claim(rank_of(beaten), ids[row]) : 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < (VOCAB + 63) / 64 * 16; i += gridDim.x * THREADS) {
        float x[4];
        bool any = false;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const u32 token = i / 16 * 64 + i % 16 + 16 * j;
            x[j] = token < VOCAB ? scaled(logits[token], highest, law.scale) : __int_as_float(0xff800000);
            any |= x[j] >= floor;
        }
        if (!any) continue;
        const Words words = philox(i, law.position, law.seed);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            if (!(x[j] >= floor) || uniform(words.w[j]) > 1.01f * __expf(x[j] - beaten)) continue;
            const float key = __fadd_rn(x[j], gumbel_of(words.w[j]));
            mine = better(mine, claim(rank_of(key), i / 16 * 64 + i % 16 + 16 * j));
            beaten = fmaxf(beaten, key);
        }
    }
    mine = best_of_block(mine);
    if (threadIdx.x) return;
    if (best_of_row(best + row, arrived + row, gridDim.x, mine, mine)) ids[row] = token_of(mine);
}
