// Sample a token of each row with temperature but without top-k and top-p (Gumbel-max): argmax(scaled logit + noise).
// `row_stats` must have run before. Other rows are not written.
//
// A thread handles four tokens at a time, which share a Philox counter. Most tokens need no logarithm: the noise is below n
// with probability exp(-exp(-n)), so a token is skipped if its random word shows that its score cannot exceed the best score
// so far. The test has a margin of 1 %.
// Grid (blocks of a row, rows), block THREADS, shared memory 8 bytes a warp (static). `best` and `arrived` are zero
// before and after. Macros: VOCAB, tokens of a row; THREADS. Bytes: 4 * VOCAB a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
draw(const float* logits, const int* row_params, const float* largest, unsigned long long* best,
     unsigned* arrived, int* ids, unsigned long long host_ids) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y;
    const SampleParams params = ((const SampleParams*)row_params)[row];
    const float highest = largest[row];
    if (params.scale <= 0.0f || is_truncated(params)) return;
    if (is_invalid(highest)) {
        if (blockIdx.x == 0 && threadIdx.x == 0) store_token(ids, host_ids, row, -1);
        return;
    }
    logits += (size_t)row * VOCAB;
    const float floor = fmaxf(params.floor, MIN_SCALED);
    float best_score = gumbel(ids[row], params.position, params.seed);  // that of the token with the largest logit
    u64 key = blockIdx.x == 0 && threadIdx.x == 0 ? max_key(rank_of(best_score), ids[row]) : 0;
    for (u32 i = blockIdx.x * THREADS + threadIdx.x; i < (VOCAB + 63) / 64 * 16; i += gridDim.x * THREADS) {
        float x[4];
        bool any_above_floor = false;
        UNROLL for (int j = 0; j < 4; ++j) {
            const u32 token = i / 16 * 64 + i % 16 + 16 * j;
            x[j] = token < VOCAB && allows(params.mask, token) ? scaled(logits[token], highest, params.scale)
                                                               : __int_as_float(0xff800000);
            any_above_floor |= x[j] >= floor;
        }
        if (!any_above_floor) continue;
        const Words words = philox(i, params.position, params.seed);
        UNROLL for (int j = 0; j < 4; ++j) {
            if (!(x[j] >= floor) || uniform(words.w[j]) > 1.01f * __expf(x[j] - best_score)) continue;
            const float score = __fadd_rn(x[j], gumbel_of(words.w[j]));
            key = larger_key(key, max_key(rank_of(score), i / 16 * 64 + i % 16 + 16 * j));
            best_score = fmaxf(best_score, score);
        }
    }
    key = block_max_key(key);
    if (threadIdx.x) return;
    if (row_max_key(best + row, arrived + row, gridDim.x, key, key)) store_token(ids, host_ids, row, token_of(key));
}
