// Gate and up projections of the experts: inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE for the pairs of every item,
// up to four rows that use one expert.
//
// A unit of work is 16 rows of the gate and the same rows of the up projection of an item; a block takes a range of units.
// Each warp multiplies one span of K of every unit (split-K). Roles: every warp is its own producer and consumer. Its tokens
// stay in shared memory from unit to unit, while bulk copies prefetch the tiles of later units. The sums of the warps are
// added in order, so a pair has the same bits in any batch. Inner values are stored in spans; values past the last weight
// row are zeros.
//
// Grid: blocks, at most as many as units; block 32 * SPANS; shared memory SUM_BYTES + BARRIER_BYTES + SPANS * WARP_BYTES.
// Macros: those of gate_up_unit.cuh; STAGES, units in flight a warp; BLOCKS_PER_SM, blocks that must fit a multiprocessor.
// Bytes: the tiles of an expert once for every four of its pairs.
#include "../gpu/include/pdl.cuh"
#include "gate_up_unit.cuh"

#if !defined(STAGES) || !defined(BLOCKS_PER_SM)
#error "STAGES and BLOCKS_PER_SM must be defined"
#endif

constexpr int WARP_BYTES = STAGES * PIECE + PAIRS * SPAN_BYTES;
constexpr int SUM_BYTES = 2 * SPANS * 2 * 512, BARRIER_BYTES = (SPANS * STAGES * 8 + 127) / 128 * 128;

struct Weights {
    const u8 *gate, *up, *shared_gate, *shared_up;
};

// Producer role of a warp: copies its spans of the gate and of the up projection, unit by unit.
struct Producer {
    const Weights& weights;
    const int* item_expert;
    u32 ring, barriers;
    int item, unit, last_item, expert, next_expert, slot, left;

    __device__ Producer(const Weights& weights, const int* item_expert, u32 ring, u32 barriers, int begin, int end)
        : weights(weights), item_expert(item_expert), ring(ring), barriers(barriers), slot(0), left(end - begin) {
        item = begin / UNITS, unit = begin % UNITS, last_item = (end - 1) / UNITS;
        expert = __ldcg(item_expert + item);
        next_expert = item < last_item ? __ldcg(item_expert + item + 1) : 0;
    }
    __device__ __forceinline__ void fetch(int warp, int lane) {
        if (left == 0) return;
        --left;
        const u32 to = ring + slot * PIECE, barrier = barriers + 8 * slot;
        if (expert != EXPERTS) {
            fetch_both<GATE, UP>(to, weights.gate, weights.up, expert, FFN_DIM / 16, unit, warp, barrier, lane);
        } else {
            constexpr int STRIPES = SHARED_FFN_DIM / 16;
            fetch_both<SHARED_GATE, SHARED_UP>(to, weights.shared_gate, weights.shared_up, 0, STRIPES, unit, warp, barrier,
                                               lane);
        }
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (++unit < UNITS) return;
        unit = 0, ++item, expert = next_expert;
        if (item < last_item) next_expert = __ldcg(item_expert + item + 1);
    }
};

// Copy a warp's span of the tokens of `n` pairs to shared memory.
__device__ __forceinline__ void fetch_tokens(u8* to, const u8* x, int pair, int n, int warp, int lane) {
    constexpr int CHUNKS = SPAN_BYTES / 16;
    for (int start = 0; start < n * CHUNKS; start += 32) {
        const int c = start + lane, row = __shfl_sync(~0u, pair, min(c / CHUNKS, n - 1)) / SLOTS;
        if (c < n * CHUNKS)
            cp_async_16(smem_address(to + 16 * c), x + ((size_t)row * SPANS + warp) * SPAN_BYTES + c % CHUNKS * 16);
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    __syncwarp();  // the tokens are visible to the warp
}

// Multiply `n_units` units of one item; `done` receives the sums of each.
template <class G, class U, class Done>
__device__ __forceinline__ void multiply_item(Producer& producer, PipelineState<STAGES, PIECE>& ring, const u8* tokens,
                                              int n_units, int warp, int lane, Done done) {
    for (int i = 0; i < n_units; ++i) {
        float totals[2][1][4];
        clear(totals);
        const u8* gate = ring.wait();
        multiply_both<G, U, PAIRS>(gate, tokens, SPAN_BYTES, warp, lane, totals);
        __syncwarp();  // all lanes have read the tiles that `fetch` overwrites
        producer.fetch(warp, lane);
        ring.advance();
        done(totals[0][0], totals[1][0]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gate_up(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
        const unsigned char* gate, const unsigned char* up, const unsigned char* shared_gate,
        const unsigned char* shared_up, unsigned char* inner) {
    extern __shared__ __align__(128) u8 shared[];
    float4(*sums)[SPANS][2][32] = (float4(*)[SPANS][2][32])shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64* barriers = (u64*)(shared + SUM_BYTES) + warp * STAGES;
    u8 *own = shared + SUM_BYTES + BARRIER_BYTES + warp * WARP_BYTES, *tokens = own + STAGES * PIECE;
    if (lane < STAGES) mbarrier_init_for_copies(smem_address(barriers + lane), 2);
    __syncwarp();  // the barriers of the warp are initialised
    wait_on_dependent_grids();
    launch_dependent_grids();  // only now, as the next launch reads the items without waiting for this one
    const int units = __ldcg(n_items) * UNITS;
    const int begin = (int)((long long)units * blockIdx.x / gridDim.x);
    const int end = (int)((long long)units * (blockIdx.x + 1) / gridDim.x);
    if (begin >= end) return;

    const Weights weights = {gate, up, shared_gate, shared_up};
    Producer producer(weights, item_expert, smem_address(own), smem_address(barriers), begin, end);
    UNROLL for (int i = 0; i < STAGES; ++i) producer.fetch(warp, lane);
    PipelineState<STAGES, PIECE> ring(own, barriers);
    int done = 0;
    for (int at = begin; at < end;) {
        const int item = at / UNITS, first = at % UNITS, n_units = min(end - at, UNITS - first);
        const int expert = __ldcg(item_expert + item), pair = lane < PAIRS ? __ldcg(item_pairs + item * PAIRS + lane) : -1;
        const int n = __popc(__ballot_sync(~0u, pair >= 0));
        fetch_tokens(tokens, x, pair, n, warp, lane);
        const int stripes = (expert == EXPERTS ? SHARED_FFN_DIM : FFN_DIM) / 16;
        int unit = first;
        const auto add_up = [&](const float (&g)[4], const float (&u)[4]) {
            store_sums(sums[done % 2], warp, lane, g, u);
            __syncthreads();  // all sums are stored; they alternate between two buffers, so no second barrier is needed
            if (warp == done % SPANS) write_unit(sums[done % 2], unit, stripes, pair, n, lane, inner);
            ++done, ++unit;
        };
        if (SHARED_ALIKE || expert != EXPERTS) {
            multiply_item<GATE, UP>(producer, ring, tokens, n_units, warp, lane, add_up);
        } else {
            multiply_item<SHARED_GATE, SHARED_UP>(producer, ring, tokens, n_units, warp, lane, add_up);
        }
        at += n_units;
    }
}
