// Candidates of each draft row from the likeliest tokens that `logprobs` has found, see candidates.py.
//
// Grid rows, block THREADS: a thread has one of the MAX_TOP likeliest tokens. Macros: VOCAB; THREADS = MAX_TOP. One element of `laws`
// serves `each` rows, and row r is at position[r] + shift; `targets`, if given, maps draft tokens to target tokens. Where the
// parameters have no scale, scores are log-probabilities; else x = scaled logit + noise, sorted, minus log(sum(exp(x))) over the
// tokens that top-k, top-p and min-p leave. Bytes: 16 * MAX_TOP a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

#if !defined(MAX_TOP) || MAX_TOP != THREADS
#error "MAX_TOP must be defined, and be THREADS"
#endif

constexpr double UNIT_OF_TOTAL = 17592186044416.0;  // 2^44

// The same as in logprobs.cu.
struct Found {
    u64 total;
    float largest, chosen;
    int ids[MAX_TOP];
    float values[MAX_TOP];
};

// The number of likeliest tokens that top-k, top-p and min-p leave. `value`: the thread's scaled logit; `own`: false if it has none.
__device__ __forceinline__ int left_by(const SampleParams& law, float value, bool own) {
    __shared__ double masses[MAX_TOP];
    __shared__ int ends;
    const int i = threadIdx.x;
    if (i == 0) ends = MAX_TOP;
    const bool ranks = own && (!by_rank(law) || i < law.top_k);
    masses[i] = ranks ? exp((double)value) : 0.0;
    __syncthreads();
    bool out = !ranks || value < law.floor;
    if (law.top_p < 1.0 && i > 0) {
        double total = 0.0, mass = 0.0;
        for (int j = 0; j < MAX_TOP; ++j) {
            if (j == i) mass = total;
            total += masses[j];
        }
        out |= mass >= law.top_p * total;
    }
    if (out) atomicMin(&ends, i);
    __syncthreads();
    return ends;
}

extern "C" __global__ void __launch_bounds__(THREADS)
candidates(const int* found, const float* largest, const int* laws, int each, const int* position, int shift,
           const int* targets, int* ids, float* scores) {
    __shared__ float xs[MAX_TOP];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, i = threadIdx.x;
    const SampleParams law = ((const SampleParams*)laws)[row / each];
    const Found& from = ((const Found*)found)[row];
    const float highest = largest[row], nothing = __int_as_float(0xff800000);
    const bool hopeless = is_invalid(highest);
    const int own = hopeless || i >= VOCAB ? -1 : from.ids[i], id = targets && own >= 0 ? targets[own] : own;
    ids += (size_t)row * MAX_TOP, scores += (size_t)row * MAX_TOP;
    if (law.scale <= 0.0f) {
        const double total = highest + log((double)from.total / UNIT_OF_TOTAL);
        ids[i] = id, scores[i] = id < 0 ? nothing : (float)(from.values[i] - total);
        return;
    }
    float x = id < 0 ? nothing : scaled(from.values[i], highest, law.scale);
    const int n = left_by(law, x, id >= 0);
    xs[i] = x = i < n ? __fadd_rn(x, gumbel(id, position[row] + shift, law.seed)) : nothing;
    __syncthreads();
    int before = 0;
    float top = nothing;
    for (int j = 0; j < n; ++j) {
        before += xs[j] > x || (xs[j] == x && j < i);
        top = fmaxf(top, xs[j]);
    }
    double total = 0.0;
    for (int j = 0; j < n; ++j) total += (double)expf(xs[j] - top);
    if (i >= n) {
        ids[i] = -1, scores[i] = nothing;
    } else {
        ids[before] = id, scores[before] = (float)(x - (top + log(total)));
    }
}
