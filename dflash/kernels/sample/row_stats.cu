// The largest logit of each row and its token, and statistics of its chunks for the sampling kernels.
//
// Grid (chunks of a row, rows), block THREADS; the last block of a row to finish combines its chunks.
// Macros: VOCAB, tokens of a row; THREADS; CHUNK, tokens of a block.
// tops: for rows with top-k, top-p or log-probabilities, the rank of the largest of each GROUP tokens.
// sums: for rows with top-p alone or log-probabilities, the largest of each chunk, and the sums of exp((x - largest) * scale)
// and exp(x - largest). best and arrived are zero before and after. Bytes: 4 * VOCAB a row.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "rows.cuh"

#ifndef CHUNK
#error "CHUNK must be defined"
#endif
static_assert(CHUNK % (4 * THREADS) == 0, "a thread takes four tokens at a time");

constexpr int EACH = CHUNK / (4 * THREADS);

__device__ __forceinline__ float sum_of_block(float value) {
    __shared__ float parts[WARPS];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    value = 0.0f;
    for (int i = 0; i < WARPS; ++i) value += parts[i];
    return value;
}

__device__ __forceinline__ float sum_of_exponentials(const float (&x)[EACH][4], float highest, float scale) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sum += rank_of(x[i][j]) ? expf(scaled(x[i][j], highest, scale)) : 0.0f;
    }
    return sum_of_block(sum);
}

extern "C" __global__ void __launch_bounds__(THREADS)
row_stats(const float* logits, const int* laws, unsigned* tops, float* sums, unsigned long long* best, unsigned* arrived,
          int* ids, float* largest) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.y, start = blockIdx.x * CHUNK;
    const float* at = logits + (size_t)row * VOCAB;
    const SampleParams law = ((const SampleParams*)laws)[row];
    float x[EACH][4];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int token = start + 4 * (i * THREADS + threadIdx.x);
        if (VOCAB % 4 == 0) {
            const float nothing = __int_as_float(0xff800000);
            const float4 v = token < VOCAB ? *(const float4*)(at + token) : make_float4(nothing, nothing, nothing, nothing);
            x[i][0] = v.x, x[i][1] = v.y, x[i][2] = v.z, x[i][3] = v.w;
        } else {
#pragma unroll
            for (int j = 0; j < 4; ++j) x[i][j] = token + j < VOCAB ? at[token + j] : __int_as_float(0xff800000);
        }
    }
    const bool asks = selects(law) || law.n_top >= 0;
    float top = __int_as_float(0xff800000);  // NaN never is
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const float four = fmaxf(fmaxf(x[i][0], x[i][1]), fmaxf(x[i][2], x[i][3]));
        top = fmaxf(top, four);
        if (asks) {
            const int token = start + 4 * (i * THREADS + threadIdx.x);
            const u32 rank = __reduce_max_sync(~0u, rank_of(four));
            if (threadIdx.x % 32 == 0 && token < VOCAB) tops[(size_t)row * GROUPS + token / GROUP] = rank;
        }
    }
    int its_token = 0;
#pragma unroll
    for (int i = 4 * EACH - 1; i >= 0; --i) {
        if (x[i / 4][i % 4] == top) its_token = start + 4 * (i / 4 * THREADS + threadIdx.x) + i % 4;
    }
    const u64 mine = claim(rank_of(top), its_token);
    const u64 mine_of_block = best_of_block(mine);
    const bool shares = selects(law) && !by_rank(law), tells = law.n_top >= 0;
    if (shares || tells) {
        __shared__ float highest;
        if (threadIdx.x == 0) highest = mine_of_block ? value_of((u32)(mine_of_block >> 32)) : __int_as_float(0xff800000);
        __syncthreads();
        const float by_law = shares ? sum_of_exponentials(x, highest, law.scale) : 0.0f;
        const float plain = tells ? sum_of_exponentials(x, highest, 1.0f) : 0.0f;
        float* to = sums + 3 * ((size_t)row * gridDim.x + blockIdx.x);
        if (threadIdx.x == 0) to[0] = highest, to[1] = by_law, to[2] = plain;
    }
    if (threadIdx.x) return;
    u64 found;
    if (!best_of_row(best + row, arrived + row, gridDim.x, mine_of_block, found)) return;
    ids[row] = token_of(found);
    largest[row] = found ? value_of((u32)(found >> 32)) : __int_as_float(0xff800000);
}
