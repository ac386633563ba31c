// Sample a token of each row with top-k or top-p, see decode/sampling/processors.py: argmax(scaled + noise) over the tokens that these and min-p
// leave. `row_stats` has run before. Other rows are not written.
//
// Grid rows, block THREADS. A block lists some of the likeliest tokens and, if they are not enough, reads the row several times.
// Macros: VOCAB, THREADS; N_CHUNKS, chunks of a row of which `row_stats` has the sums. Bytes: some KiB of a row, or a few times
// 4 * VOCAB.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "select.cuh"

#ifndef N_CHUNKS
#error "N_CHUNKS must be defined"
#endif

constexpr int SOME = 128, MORE = 1024;  // likely tokens that are listed for top-p
constexpr float NEGLIGIBLE = 32.0f;     // a vocabulary of tokens so far below the largest has no share

template <class Places>
__device__ __forceinline__ u64 draw_before(const Places& places, u64 end, const SampleParams& law, float highest) {
    const float floor = fmaxf(law.floor, MIN_SCALED);
    u64 mine = 0;
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place >= end) return;
        const float x = scaled(value_at(place), highest, law.scale);
        const u32 token = (u32)place;
        if (x >= floor) mine = better(mine, claim(rank_of(__fadd_rn(x, gumbel(token, law.position, law.seed))), token));
    });
    return mine;
}

// Apply top-k and top-p to some places and sample one. If `total` is 0, top-p is a share of the places that top-k keeps.
// scratch.reached: false if top-p needs more places than these.
template <class Places>
__device__ __forceinline__ u64 draw_kept(const Places& places, const Steps& steps, const SampleParams& law, u64 total,
                                         Scratch& scratch) {
    const Weight weight{steps.highest, law.scale};
    u64 end = NOWHERE;
    if (by_rank(law)) end = end_of(places, steps, end, One(), law.top_k, true, scratch);
    bool reached = true;
    if (law.top_p < 1.0) {
        if (total == 0) total = mass_before(places, end, weight, scratch);
        const u64 wanted = max(1ull, (u64)ceil(law.top_p * (double)total));
        end = end_of(places, steps, end, weight, wanted, true, scratch);
        reached = scratch.reached;
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.reached = reached;
    __syncthreads();
    return draw_before(places, end, law, steps.highest);
}

// The same of a short list: a thread has a place, and adds up all that come before it.
__device__ __forceinline__ u64 draw_short(int n, const Steps& steps, const SampleParams& law, u64 total, Scratch& scratch) {
    const Weight weight{steps.highest, law.scale};
    const bool inside = threadIdx.x < n;
    const u64 place = inside ? scratch.list[threadIdx.x] : NOWHERE, own = inside ? weight(place) : 0;
    if (threadIdx.x < SHORT) scratch.list[threadIdx.x] = place, scratch.masses[threadIdx.x] = own;
    __syncthreads();
    int rank = 0;
    u64 before = 0;
    for (int i = 0; i < n && inside; i += 4) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
            const bool ahead = scratch.list[j] < place;
            rank += ahead;
            before += ahead ? scratch.masses[j] : 0;
        }
    }
    bool kept = inside && (!by_rank(law) || rank < law.top_k), reached = true;
    if (law.top_p < 1.0) {
        const u64 listed = sum_of_block(kept ? own : 0, scratch);
        const u64 wanted = max(1ull, (u64)ceil(law.top_p * (double)(total ? total : listed)));
        reached = listed >= wanted;
        kept = kept && before < wanted;
    }
    __syncthreads();
    if (threadIdx.x == 0) scratch.reached = reached;
    __syncthreads();
    const float x = scaled(value_at(place), steps.highest, law.scale);
    if (!kept || !(x >= fmaxf(law.floor, MIN_SCALED))) return 0;
    return claim(rank_of(__fadd_rn(x, gumbel((u32)place, law.position, law.seed))), (u32)place);
}

extern "C" __global__ void __launch_bounds__(THREADS)
topk_topp(const float* logits, const int* laws, const unsigned* tops, const float* sums, const float* largest, int* ids) {
    __shared__ Scratch scratch;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x;
    const SampleParams& law = ((const SampleParams*)laws)[row];
    const float highest = largest[row];
    if (!selects(law)) return;
    if (is_invalid(highest)) {
        if (threadIdx.x == 0) ids[row] = -1;
        return;
    }
    logits += (size_t)row * VOCAB, tops += (size_t)row * GROUPS, sums += (size_t)row * N_CHUNKS * 3;
    const Steps steps(highest, NEGLIGIBLE / law.scale);
    const u64 total = by_rank(law) ? 0 : total_of(sums + 1, sums, N_CHUNKS, highest, law.scale, scratch);
    u64 mine = 0;
    bool done = false;
    for (int wanted = by_rank(law) ? law.top_k : SOME; wanted <= MORE && !done; wanted = wanted == SOME ? MORE : MORE + 1) {
        const int n = list_likeliest(logits, tops, steps, LAST - 1, wanted, scratch);
        if (n < 0) break;
        const bool all = scratch.bin == LAST - 1;
        mine = n <= SHORT ? draw_short(n, steps, law, total, scratch)
                          : draw_kept(List{scratch.list, n}, steps, law, total, scratch);
        done = scratch.reached || all || by_rank(law);
    }
    // made anew, which spares a register all the way here
    if (!done) mine = draw_kept(Row(logits), Steps(largest[row], NEGLIGIBLE / law.scale), law, total, scratch);
    mine = best_of_block(mine);
    if (threadIdx.x == 0) ids[row] = token_of(mine);
}
