// Data for the log probabilities of a row: its most probable tokens in order, the logit of the sampled token, and the sum of
// exp(logit - largest). `row_stats` must have run before, and the kernel that samples the row.
//
// Grid (rows), block THREADS, shared memory `Scratch` of select.cuh (static). Macros: VOCAB, tokens of a row; THREADS;
// N_CHUNKS, chunks of a row for which `row_stats` has statistics; MAX_TOP, capacity for most probable tokens.
// Rows with a negative n_top are not written. Unused entries, where no token is above minus infinity, have id -1. Bytes: a
// few KiB a row, or a few times 4 * VOCAB if the list of select.cuh is too short.
#include "../gpu/include/pdl.cuh"
#include "select.cuh"

#if !defined(N_CHUNKS) || !defined(MAX_TOP)
#error "N_CHUNKS and MAX_TOP must be defined"
#endif
static_assert(MAX_TOP <= LIST_CAPACITY / 2, "the list must hold MAX_TOP tokens");

constexpr float LOGIT_RANGE =
    32.0f;  // logits above the largest minus this are found in one pass; lower ones need more passes

// Write the `n` most probable tokens of `keys` to `result` in order.
template <class Keys>
__device__ __forceinline__ void write_top_tokens(const Keys& keys, const LogitBins& logit_bins, int n, RowLogprobs& result,
                                                 Scratch& scratch) {
    __shared__ u64 top_keys[MAX_TOP];
    const u64 end = find_end(keys, logit_bins, NO_KEY, UnitWeight(), n, false, scratch);
    __syncthreads();
    if (threadIdx.x == 0) scratch.n_final = 0;
    __syncthreads();
    keys.at_least(last_logit(end)).each([&](u64 key) {
        if (key < end) top_keys[atomicAdd(&scratch.n_final, 1)] = key;
    });
    __syncthreads();
    const int found = scratch.n_final;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        if (i >= found) {
            result.ids[i] = -1, result.values[i] = __int_as_float(0xff800000);
            continue;
        }
        int before = 0;
        for (int j = 0; j < found; ++j) before += top_keys[j] < top_keys[i];
        result.ids[before] = (int)(u32)top_keys[i], result.values[before] = logit_at(top_keys[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
logprobs(const float* logits, const int* row_params, const unsigned* tops, const float* sums,
         const float* largest, const int* ids, int* found) {
    __shared__ Scratch scratch;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, n = min(((const SampleParams*)row_params)[row].n_top, min(MAX_TOP, VOCAB));
    const float highest = largest[row];
    if (n < 0 || is_invalid(highest)) return;
    const float* at = logits + (size_t)row * VOCAB;
    const float* row_stats = sums + (size_t)row * N_CHUNKS * 3;
    const u64 total = total_weight(row_stats + 2, row_stats, N_CHUNKS, highest, 1.0f, scratch);
    RowLogprobs& result = ((RowLogprobs*)found)[row];
    if (threadIdx.x == 0) result.total = total, result.largest = highest, result.sampled_logit = at[max(ids[row], 0)];
    if (n == 0) return;
    const LogitBins logit_bins(highest, LOGIT_RANGE);
    const int listed = list_top_tokens(at, nullptr, tops + (size_t)row * GROUPS, logit_bins, LAST_BIN, n, scratch);
    if (listed >= 0) {
        write_top_tokens(KeyList{scratch.list, listed}, logit_bins, n, result, scratch);
    } else {
        write_top_tokens(RowKeys(at, nullptr), logit_bins, n, result, scratch);
    }
}
