// What log-probabilities need of a row: its likeliest tokens in order, the logit of the token that was drawn, and the sum of
// exp(logit - largest). `survey` has run before, and `draw` where it must.
//
// Grid rows, block THREADS. Macros: VOCAB, THREADS; SUMS, chunks of a row that `survey` has summed; MOST, places for
// likeliest tokens. Rows with n_top below 0 are left alone; -1 stands where there is no token above minus infinity.
#include "../gpu/include/pdl.cuh"
#include "select.cuh"

#if !defined(SUMS) || !defined(MOST)
#error "SUMS and MOST must be defined"
#endif
static_assert(MOST <= LISTED / 2, "the list holds them");

// What is told of a row; cuda.py knows it, too.
struct Found {
    u64 total;  // in units of 2^-44
    float largest, chosen;
    int ids[MOST];
    float values[MOST];
};

constexpr float REACH = 32.0f;  // below the largest; further down it takes longer

// Put the `n` likeliest of some places in order.
template <class Places>
__device__ __forceinline__ void write_likeliest(const Places& places, const Steps& steps, int n, Found& to, Room& room) {
    __shared__ u64 kept[MOST];
    const u64 end = end_of(places, steps, NOWHERE, One(), n, false, room);
    __syncthreads();
    if (threadIdx.x == 0) room.n_few = 0;
    __syncthreads();
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place < end) kept[atomicAdd(&room.n_few, 1)] = place;
    });
    __syncthreads();
    const int found = room.n_few;
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
top(const float* logits, const int* laws, const unsigned* tops, const float* sums, const float* largest, const int* ids,
    int* found) {
    __shared__ Room room;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, n = min(((const Law*)laws)[row].n_top, min(MOST, VOCAB));
    const float highest = largest[row];
    if (n < 0 || is_hopeless(highest)) return;
    const float* at = logits + (size_t)row * VOCAB;
    const float* its_sums = sums + (size_t)row * SUMS * 3;
    const u64 total = total_of(its_sums + 2, its_sums, SUMS, highest, 1.0f, room);
    Found& to = ((Found*)found)[row];
    if (threadIdx.x == 0) to.total = total, to.largest = highest, to.chosen = at[max(ids[row], 0)];
    if (n == 0) return;
    const Steps steps(highest, REACH);
    const int listed = list_likeliest(at, tops + (size_t)row * GROUPS, steps, LAST, n, room);
    if (listed >= 0) {
        write_likeliest(List{room.list, listed}, steps, n, to, room);
    } else {
        write_likeliest(Row(at), steps, n, to, room);
    }
}
