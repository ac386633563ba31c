// Draw a token of each row with top-k or top-p, as decode/rules.py says: argmax(scaled + noise) over what these and min-p
// leave. `survey` has run before; other rows are left alone.
//
// Grid rows, block THREADS. A block lists some likely tokens and, if these do not do, goes over the row several times.
// Macros: VOCAB, THREADS. SUMS, chunks of a row that `survey` has summed.
// Bytes: some KiB of a row, or a few times 4 * VOCAB.
#include "../gpu/include/pdl.cuh"
#include "noise.cuh"
#include "select.cuh"

#ifndef SUMS
#error "SUMS must be defined"
#endif

constexpr int SOME = 128, MORE = 1024;  // likely tokens that are listed for top-p
constexpr float NEGLIGIBLE = 32.0f;     // a vocabulary of tokens so far below the largest has no share

template <class Places>
__device__ __forceinline__ u64 draw_before(const Places& places, u64 end, const Law& law, float highest) {
    const float floor = fmaxf(law.floor, BEYOND);
    u64 mine = 0;
    places.down_to(last_value(end)).each([&](u64 place) {
        if (place >= end) return;
        const float x = scaled(value_at(place), highest, law.scale);
        const u32 token = (u32)place;
        if (x >= floor) mine = better(mine, claim(rank_of(__fadd_rn(x, gumbel(token, law.position, law.seed))), token));
    });
    return mine;
}

// Keep what the law says of some places and draw from it. If `total` is 0, top-p is a share of the places that top-k kept.
// room.reached: false if top-p wants more than there are.
template <class Places>
__device__ __forceinline__ u64 draw_kept(const Places& places, const Steps& steps, const Law& law, u64 total, Room& room) {
    const Weight weight{steps.highest, law.scale};
    u64 end = NOWHERE;
    if (by_rank(law)) end = end_of(places, steps, end, One(), law.top_k, true, room);
    bool reached = true;
    if (law.top_p < 1.0) {
        if (total == 0) total = mass_before(places, end, weight, room);
        const u64 wanted = max(1ull, (u64)ceil(law.top_p * (double)total));
        end = end_of(places, steps, end, weight, wanted, true, room);
        reached = room.reached;
    }
    __syncthreads();
    if (threadIdx.x == 0) room.reached = reached;
    __syncthreads();
    return draw_before(places, end, law, steps.highest);
}

// The same of a short list: a thread has a place, and adds up all that come before it.
__device__ __forceinline__ u64 draw_short(int n, const Steps& steps, const Law& law, u64 total, Room& room) {
    const Weight weight{steps.highest, law.scale};
    const bool inside = threadIdx.x < n;
    const u64 place = inside ? room.list[threadIdx.x] : NOWHERE, own = inside ? weight(place) : 0;
    if (threadIdx.x < SHORT) room.list[threadIdx.x] = place, room.masses[threadIdx.x] = own;
    __syncthreads();
    int rank = 0;
    u64 before = 0;
    for (int i = 0; i < n && inside; i += 4) {
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
            const bool ahead = room.list[j] < place;
            rank += ahead;
            before += ahead ? room.masses[j] : 0;
        }
    }
    bool kept = inside && (!by_rank(law) || rank < law.top_k), reached = true;
    if (law.top_p < 1.0) {
        const u64 listed = sum_of_block(kept ? own : 0, room);
        const u64 wanted = max(1ull, (u64)ceil(law.top_p * (double)(total ? total : listed)));
        reached = listed >= wanted;
        kept = kept && before < wanted;
    }
    __syncthreads();
    if (threadIdx.x == 0) room.reached = reached;
    __syncthreads();
    const float x = scaled(value_at(place), steps.highest, law.scale);
    if (!kept || !(x >= fmaxf(law.floor, BEYOND))) return 0;
    return claim(rank_of(__fadd_rn(x, gumbel((u32)place, law.position, law.seed))), (u32)place);
}

extern "C" __global__ void __launch_bounds__(THREADS)
select(const float* logits, const int* laws, const unsigned* tops, const float* sums, const float* largest, int* ids) {
    __shared__ Room room;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x;
    const Law& law = ((const Law*)laws)[row];
    const float highest = largest[row];
    if (!selects(law)) return;
    if (is_hopeless(highest)) {
        if (threadIdx.x == 0) ids[row] = -1;
        return;
    }
    logits += (size_t)row * VOCAB, tops += (size_t)row * GROUPS, sums += (size_t)row * SUMS * 3;
    const Steps steps(highest, NEGLIGIBLE / law.scale);
    const u64 total = by_rank(law) ? 0 : total_of(sums + 1, sums, SUMS, highest, law.scale, room);
    u64 mine = 0;
    bool done = false;
    for (int wanted = by_rank(law) ? law.top_k : SOME; wanted <= MORE && !done; wanted = wanted == SOME ? MORE : MORE + 1) {
        const int n = list_likeliest(logits, tops, steps, LAST - 1, wanted, room);
        if (n < 0) break;
        const bool all = room.bin == LAST - 1;
        mine = n <= SHORT ? draw_short(n, steps, law, total, room) : draw_kept(List{room.list, n}, steps, law, total, room);
        done = room.reached || all || by_rank(law);
    }
    // made anew, which spares a register all the way here
    if (!done) mine = draw_kept(Row(logits), Steps(largest[row], NEGLIGIBLE / law.scale), law, total, room);
    mine = best_of_block(mine);
    if (threadIdx.x == 0) ids[row] = token_of(mine);
}
