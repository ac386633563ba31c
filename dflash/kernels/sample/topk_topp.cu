// Sample a token of each row with top-k or top-p: argmax(scaled logit + noise) over the tokens that top-k, top-p and min-p
// leave; decode/sampling/processors.py has the definition. `row_stats` must have run before. Other rows are not written.
//
// Grid (rows), block THREADS, shared memory `Scratch` of select.cuh (static). A block lists the most probable tokens. If
// they are not enough for top-p, it reads the row several times.
// Macros: VOCAB, tokens of a row; THREADS; N_CHUNKS, chunks of a row for which `row_stats` has statistics. Bytes: a few KiB
// a row, or a few times 4 * VOCAB.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "select.cuh"

#ifndef N_CHUNKS
#error "N_CHUNKS must be defined"
#endif

constexpr int FIRST_LIST = 128, SECOND_LIST = 1024;  // tokens that the first and the second attempt list for top-p
constexpr float NEGLIGIBLE = 32.0f;  // scaled logits this far below the largest have no weight, even all together

// Key of the thread's best token among the keys before `end`.
template <class Keys>
__device__ __forceinline__ u64 sample_before(const Keys& keys, u64 end, const SampleParams& params, float highest) {
    const float floor = fmaxf(params.floor, MIN_SCALED);
    u64 best_key = 0;
    keys.at_least(last_logit(end)).each([&](u64 key) {
        if (key >= end) return;
        const float x = scaled(logit_at(key), highest, params.scale);
        const u32 token = (u32)key;
        if (x >= floor)
            best_key =
                larger_key(best_key, max_key(rank_of(__fadd_rn(x, gumbel(token, params.position, params.seed))), token));
    });
    return best_key;
}

// Apply top-k and top-p to `keys` and sample a token. `total`: the weight of the whole row; 0 if top-p refers to the keys
// that top-k leaves. scratch.reached: false if top-p needs more keys than these.
template <class Keys>
__device__ __forceinline__ u64 sample_keys(const Keys& keys, const LogitBins& logit_bins, const SampleParams& params,
                                           u64 total, Scratch& scratch) {
    const ExpWeight exp_weight{logit_bins.highest, params.scale};
    u64 end = NO_KEY;
    if (has_top_k(params)) end = find_end(keys, logit_bins, end, UnitWeight(), params.top_k, true, scratch);
    bool reached = true;
    if (params.top_p < 1.0) {
        if (total == 0) total = weight_before(keys, end, exp_weight, scratch);
        const u64 target = max(1ull, (u64)ceil(params.top_p * (double)total));
        end = find_end(keys, logit_bins, end, exp_weight, target, true, scratch);
        reached = scratch.reached;
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.reached = reached;
    __syncthreads();
    return sample_before(keys, end, params, logit_bins.highest);
}

// As `sample_keys`, for a list of at most SHORT_LIST keys: each thread has one key and sums all that precede it.
__device__ __forceinline__ u64 sample_short_list(int n, const LogitBins& logit_bins, const SampleParams& params, u64 total,
                                                 Scratch& scratch) {
    const ExpWeight exp_weight{logit_bins.highest, params.scale};
    const bool in_list = threadIdx.x < n;
    const u64 key = in_list ? scratch.list[threadIdx.x] : NO_KEY, weight = in_list ? exp_weight(key) : 0;
    if (threadIdx.x < SHORT_LIST) scratch.list[threadIdx.x] = key, scratch.weights[threadIdx.x] = weight;
    __syncthreads();  // keys and weights of the list are stored
    int rank = 0;
    u64 before = 0;
    for (int i = 0; i < n && in_list; i += 4) {
        UNROLL for (int j = i; j < i + 4; ++j) {
            const bool precedes = scratch.list[j] < key;
            rank += precedes;
            before += precedes ? scratch.weights[j] : 0;
        }
    }
    bool selected = in_list && (!has_top_k(params) || rank < params.top_k), reached = true;
    if (params.top_p < 1.0) {
        const u64 listed = block_sum(selected ? weight : 0, scratch);
        const u64 target = max(1ull, (u64)ceil(params.top_p * (double)(total ? total : listed)));
        reached = listed >= target;
        selected = selected && before < target;
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.reached = reached;
    __syncthreads();
    const float x = scaled(logit_at(key), logit_bins.highest, params.scale);
    if (!selected || !(x >= fmaxf(params.floor, MIN_SCALED))) return 0;
    return max_key(rank_of(__fadd_rn(x, gumbel((u32)key, params.position, params.seed))), (u32)key);
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_topp(const float* logits, const int* row_params, const unsigned* tops, const float* sums,
          const float* largest, int* ids, unsigned long long host_ids) {
    __shared__ Scratch scratch;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x;
    const SampleParams& params = ((const SampleParams*)row_params)[row];
    const float highest = largest[row];
    if (!is_truncated(params)) return;
    if (is_invalid(highest)) {
        if (threadIdx.x == 0) store_token(ids, host_ids, row, -1);
        return;
    }
    logits += (size_t)row * VOCAB, tops += (size_t)row * GROUPS, sums += (size_t)row * N_CHUNKS * 3;
    const LogitBins logit_bins(highest, NEGLIGIBLE / params.scale);
    const u64 total =
        has_top_k(params) ? 0 : total_weight(sums + 1, sums, N_CHUNKS, highest, params.scale, scratch);
    u64 best_key = 0;
    bool done = false;
    for (int target = has_top_k(params) ? params.top_k : FIRST_LIST; target <= SECOND_LIST && !done;
         target = target == FIRST_LIST ? SECOND_LIST : SECOND_LIST + 1) {
        const int n = list_top_tokens(logits, params.mask, tops, logit_bins, LAST_BIN - 1, target, scratch);
        if (n < 0) break;
        const bool all = scratch.bin == LAST_BIN - 1;
        best_key = n <= SHORT_LIST ? sample_short_list(n, logit_bins, params, total, scratch)
                                   : sample_keys(KeyList{scratch.list, n}, logit_bins, params, total, scratch);
        done = scratch.reached || all || has_top_k(params);
    }
    // constructed again: keeping `logit_bins` until here would cost a register
    if (!done)
        best_key = sample_keys(RowKeys(logits, params.mask), LogitBins(largest[row], NEGLIGIBLE / params.scale), params, total, scratch);
    best_key = block_max_key(best_key);
    if (threadIdx.x == 0) store_token(ids, host_ids, row, token_of(best_key));
}
