// Draft candidates of each row from the most probable tokens that `logprobs` has found; candidates.py has the definition.
//
// Grid (rows), block THREADS, shared memory 12 * MAX_TOP bytes (static): a thread handles one of the MAX_TOP most probable
// tokens. Macros: VOCAB, tokens of a row; THREADS and MAX_TOP, equal.
// Each element of `row_params`, the sampling parameters, applies to `each` rows. Row r is at position[r] + shift. `targets`, if
// not null, maps draft tokens to target tokens.
// Without a scale in the parameters (greedy), scores are log probabilities. With one, x = scaled logit + Gumbel noise of the
// tokens that top-k, top-p and min-p leave; scores are x - log(sum(exp(x))), in descending order. Bytes: 16 * MAX_TOP a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

#if !defined(MAX_TOP) || MAX_TOP != THREADS
#error "MAX_TOP must be defined, and be THREADS"
#endif

constexpr double TOTAL_UNIT = 17592186044416.0;  // 2^44: units of `total` in 1

// Number of tokens, from the most probable one on, that top-k, top-p and min-p leave. `value`: the thread's scaled logit,
// valid if `has_value`.
__device__ __forceinline__ int n_remaining(const SampleParams& params, float value, bool has_value) {
    __shared__ double weights[MAX_TOP];
    __shared__ int end;
    const int i = threadIdx.x;
    if (i == 0) end = MAX_TOP;
    const bool in_top_k = has_value && (!has_top_k(params) || i < params.top_k);
    weights[i] = in_top_k ? exp((double)value) : 0.0;
    __syncthreads();  // weights and `end` are stored
    bool out = !in_top_k || value < params.floor;
    if (params.top_p < 1.0 && i > 0) {
        double total = 0.0, weight_before = 0.0;
        for (int j = 0; j < MAX_TOP; ++j) {
            if (j == i) weight_before = total;
            total += weights[j];
        }
        out |= weight_before >= params.top_p * total;
    }
    if (out) atomicMin(&end, i);
    __syncthreads();  // `end` is final
    return end;
}

extern "C" __global__ void __launch_bounds__(THREADS)
candidates(const int* found, const float* largest, const int* row_params, int each, const int* position,
           int shift, const int* targets, int* ids, float* scores) {
    __shared__ float xs[MAX_TOP];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, i = threadIdx.x;
    const SampleParams params = ((const SampleParams*)row_params)[row / each];
    const RowLogprobs& logprobs = ((const RowLogprobs*)found)[row];
    const float highest = largest[row], minus_infinity = __int_as_float(0xff800000);
    const bool invalid = is_invalid(highest);
    const int column = invalid || i >= VOCAB ? -1 : logprobs.ids[i], id = targets && column >= 0 ? targets[column] : column;
    ids += (size_t)row * MAX_TOP, scores += (size_t)row * MAX_TOP;
    if (params.scale <= 0.0f) {
        const double total = highest + log((double)logprobs.total / TOTAL_UNIT);
        ids[i] = id, scores[i] = id < 0 ? minus_infinity : (float)(logprobs.values[i] - total);
        return;
    }
    float x = id < 0 ? minus_infinity : scaled(logprobs.values[i], highest, params.scale);
    const int n = n_remaining(params, x, id >= 0);
    xs[i] = x = i < n ? __fadd_rn(x, gumbel(id, position[row] + shift, params.seed)) : minus_infinity;
    __syncthreads();  // the scores of all candidates are stored
    int before = 0;
    float top = minus_infinity;
    for (int j = 0; j < n; ++j) {
        before += xs[j] > x || (xs[j] == x && j < i);
        top = fmaxf(top, xs[j]);
    }
    double total = 0.0;
    for (int j = 0; j < n; ++j) total += (double)expf(xs[j] - top);
    if (i >= n) {
        ids[i] = -1, scores[i] = minus_infinity;
    } else {
        ids[before] = id, scores[before] = (float)(x - (top + log(total)));
    }
}
