// Data for log-probabilities of a row: its likeliest tokens in order, the logit of the sampled token, and the sum of
// exp(logit - largest). `row_stats` has run before, and `draw` where it applies.
//
// Grid rows, block THREADS. Macros: VOCAB, THREADS; N_CHUNKS, chunks of a row of which `row_stats` has the sums; MAX_TOP, capacity for
// likeliest tokens. Rows with n_top below 0 are not written; -1 stands where there is no token above minus infinity.
#include "../gpu/include/pdl.cuh"
#include "select.cuh"

#if !defined(N_CHUNKS) || !defined(MAX_TOP)
#error "N_CHUNKS and MAX_TOP must be defined"
#endif
static_assert(MAX_TOP <= LISTED / 2, "the list holds them");

// Result of a row; `cuda.py` has the same layout.
struct Found {
    u64 total;  // in units of 2^-44
    float largest, chosen;
    int ids[MAX_TOP];
    float values[MAX_TOP];
};

constexpr float REACH = 32.0f;  // below the largest; further down it takes longer

// Put the `n` likeliest of some places in order.
template <class Places>
__device__ __forceinline__ void write_likeliest(const Places& places, const Steps& steps, int n, Found& to, Scratch& scratch) {
    __shared__ u64 kept[MAX_TOP];
    const u64 end = end_of(places, steps, NOWHERE, One(), n, false, scratch);
    __syncthreads();
    if (threadIdx.x == 0) scratch.n_few = 0;
    __syncthreads();
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place < end) kept[atomicAdd(&scratch.n_few, 1)] = place;
    });
    __syncthreads();
    const int found = scratch.n_few;
    for (int i = threadIdx.x; i < n; i += THREADS) {
        if (i >= found) {
            to.ids[i] = -1, to.values[i] = __int_as_float(0xff800000);
            continue;
        }
        int before = 0;
        for (int j = 0; j < found; ++j) before += kept[j] < kept[i];
        to.ids[before] = (int)(u32)kept[i], to.values[before] = value_at(kept[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
logprobs(const float* logits, const int* laws, const unsigned* tops, const float* sums, const float* largest,
         const int* ids, int* found) {
    __shared__ Scratch scratch;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, n = min(((const SampleParams*)laws)[row].n_top, min(MAX_TOP, VOCAB));
    const float highest = largest[row];
    if (n < 0 || is_invalid(highest)) return;
    const float* at = logits + (size_t)row * VOCAB;
    const float* its_sums = sums + (size_t)row * N_CHUNKS * 3;
    const u64 total = total_of(its_sums + 2, its_sums, N_CHUNKS, highest, 1.0f, scratch);
    Found& to = ((Found*)found)[row];
    if (threadIdx.x == 0) to.total = total, to.largest = highest, to.chosen = at[max(ids[row], 0)];
    if (n == 0) return;
    const Steps steps(highest, REACH);
    const int listed = list_likeliest(at, tops + (size_t)row * GROUPS, steps, LAST, n, scratch);
    if (listed >= 0) {
        write_likeliest(List{scratch.list, listed}, steps, n, to, scratch);
    } else {
        write_likeliest(Row(at), steps, n, to, scratch);
    }
}
