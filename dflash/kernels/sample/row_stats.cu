// Largest logit of each row and its token, and statistics of chunks and groups of tokens for the sampling kernels.
//
// Grid (chunks of a row, rows), block THREADS, shared memory about 12 bytes a warp (static). The last block of a row to
// finish combines its chunks. Macros: VOCAB, tokens of a row; THREADS; CHUNK, tokens of a block.
// `tops`: rank (see `rank_of`) of the largest logit of each GROUP tokens, for rows with top-k, top-p or log
// probabilities. `sums`: the largest logit of each chunk, the sum of exp((x - largest) * scale) and the sum of exp(x
// - largest), for rows with log probabilities or with top-p but no top-k. Tokens that a mask excludes count as minus
// infinity, unless `masked` is 0. `host_ids`: see `store_token`. `best` and `arrived` are zero before and after. Bytes: 4 * VOCAB a row.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "rows.cuh"

#ifndef CHUNK
#error "CHUNK must be defined"
#endif
static_assert(CHUNK % (4 * THREADS) == 0, "a thread takes four tokens at a time");

constexpr int PER_THREAD = CHUNK / (4 * THREADS);

__device__ __forceinline__ float block_sum(float value) {
    __shared__ float warp_sums[WARPS];
    value = warp_sum(value);
    __syncthreads();  // `warp_sums` of the previous call was read
    if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = value;
    __syncthreads();  // the sums of all warps are stored
    value = 0.0f;
    for (int i = 0; i < WARPS; ++i) value += warp_sums[i];
    return value;
}

__device__ __forceinline__ float block_sum_exp(const float (&x)[PER_THREAD][4], float highest, float scale) {
    float sum = 0.0f;
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        UNROLL for (int j = 0; j < 4; ++j) sum += rank_of(x[i][j]) ? expf(scaled(x[i][j], highest, scale)) : 0.0f;
    }
    return block_sum(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
row_stats(const float* logits, const int* row_params, unsigned* tops, float* sums,
          unsigned long long* best, unsigned* arrived, int* ids, float* largest, int masked,
          unsigned long long host_ids) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y, start = blockIdx.x * CHUNK;
    const float* at = logits + (size_t)row * VOCAB;
    const SampleParams params = ((const SampleParams*)row_params)[row];
    float x[PER_THREAD][4];
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        const int token = start + 4 * (i * THREADS + threadIdx.x);
        if (VOCAB % 4 == 0) {
            const float minus_infinity = __int_as_float(0xff800000);
            const float4 v = token < VOCAB ? *(const float4*)(at + token)
                                           : make_float4(minus_infinity, minus_infinity, minus_infinity, minus_infinity);
            x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
        } else {
            UNROLL for (int j = 0; j < 4; ++j) x[i][j] = token + j < VOCAB ? at[token + j] : __int_as_float(0xff800000);
        }
    }
    if (masked && params.mask) {
        UNROLL for (int i = 0; i < PER_THREAD; ++i) {
            const int token = start + 4 * (i * THREADS + threadIdx.x);
            const u32 bits = token < VOCAB ? params.mask[token / 32] >> token % 32 : 0;
            UNROLL for (int j = 0; j < 4; ++j) x[i][j] = bits >> j & 1 ? x[i][j] : __int_as_float(0xff800000);
        }
    }
    const bool needs_groups = is_truncated(params) || params.n_top >= 0;
    float top = __int_as_float(0xff800000);  // never NaN: fmaxf ignores NaN
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        const float group_max = fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3]));
        top = fmaxf(top, group_max);
        if (needs_groups) {
            const int token = start + 4 * (i * THREADS + threadIdx.x);
            const u32 rank = __reduce_max_sync(~0u, rank_of(group_max));
            if (threadIdx.x % 32 == 0 && token < VOCAB) tops[(size_t)row * GROUPS + token / GROUP] = rank;
        }
    }
    int top_token = 0;
    UNROLL for (int i = 4 * PER_THREAD - 1; i >= 0; --i) {
        if (x[i / 4][i % 4] == top) top_token = start + 4 * (i / 4 * THREADS + threadIdx.x) + i % 4;
    }
    const u64 key = max_key(rank_of(top), top_token);
    const u64 block_key = block_max_key(key);
    const bool needs_top_p = is_truncated(params) && !has_top_k(params), needs_logprobs = params.n_top >= 0;
    if (needs_top_p || needs_logprobs) {
        __shared__ float highest;
        if (threadIdx.x == 0) highest = block_key ? logit_of_rank((u32)(block_key >> 32)) : __int_as_float(0xff800000);
        __syncthreads();  // `highest` is stored
        const float scaled_sum = needs_top_p ? block_sum_exp(x, highest, params.scale) : 0.0f;
        const float plain_sum = needs_logprobs ? block_sum_exp(x, highest, 1.0f) : 0.0f;
        float* to = sums + 3 * ((size_t)row * gridDim.x + blockIdx.x);
        if (threadIdx.x == 0) to[0] = highest, to[1] = scaled_sum, to[2] = plain_sum;
    }
    if (threadIdx.x) return;
    u64 row_key;
    if (!row_max_key(best + row, arrived + row, gridDim.x, block_key, row_key)) return;
    store_token(ids, host_ids, row, token_of(row_key));
    largest[row] = row_key ? logit_of_rank((u32)(row_key >> 32)) : __int_as_float(0xff800000);
}
