// One projection of the experts in prefill on Hopper where an expert has many tokens: the operations of prefill_hopper.cu,
// with the same bits. Two warpgroups multiply 64 weight rows each with all tokens of an item.
//   GATED 1  inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE. The first warpgroup has the gate, the second one the
//            same rows of the up projection. A tile is an item and 64 inner values.
//   GATED 0  product = inner @ down.T. A tile is an item and 128 columns.
// The other two fill shared memory for them, a quarter of a span at a time: they copy its tokens (cp.async, as rows of an item
// lie apart) and dequantise its weights, 16 rows a warp, from tiles that bulk copies bring. They run ahead of the multiplies,
// also from one tile of the grid to the next.
//
// Grid any number of blocks: block b computes tiles b, b + grid and so on. Block 512, shared memory 1024 + PAIRS_AT + 4 *
// ITEMS * PAIRS.
//
// Macros: those of shape.cuh; PAIRS, 192; STAGES, 4 to 6, quarters of tokens; GATED; INNER_ORDER,
// order of the inner values; FIRST and SECOND, formats of the two warpgroups; SHARED_FIRST and SHARED_SECOND, those of the
// shared expert.
// Bytes: the tiles of an expert once for every item, the tokens of an item once for every tile.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/clear.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"
#include "weight_fragments.cuh"

#if !defined(PAIRS) || !defined(STAGES) || !defined(GATED) || !defined(INNER_ORDER)
#error "PAIRS, STAGES, GATED and INNER_ORDER must be defined"
#endif
#if !defined(FIRST) || !defined(SECOND) || !defined(SHARED_FIRST) || !defined(SHARED_SECOND)
#error "FIRST, SECOND, SHARED_FIRST and SHARED_SECOND must be defined"
#endif

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS, THREADS = 2 * CONSUMERS;  // as many multiply as bring operands
constexpr int N_SPANS = (MODEL_DIM + SPAN - 1) / SPAN, INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN;
constexpr int OWN_SPANS = GATED ? N_SPANS : (FFN_DIM + SPAN - 1) / SPAN;
constexpr int SHARED_SPANS = GATED ? N_SPANS : (SHARED_FFN_DIM + SPAN - 1) / SPAN;
constexpr int TOKEN_BYTES = (GATED ? N_SPANS : INNER_SPANS) * SPAN_BYTES;
constexpr int TILES_ACROSS = GATED ? INNER_SPANS * 4 : (MODEL_DIM + 127) / 128;
constexpr int STRIPES_ACROSS = GATED ? WARPS / 2 : WARPS;  // stripes of 16 rows of a tile
constexpr int STRIPES = (GATED ? FFN_DIM : MODEL_DIM) / 16, SHARED_STRIPES = (GATED ? SHARED_FFN_DIM : MODEL_DIM) / 16;

constexpr int X_BYTES = PAIRS * 128, W_BYTES = 128 * 128;  // a quarter: 64 values of all tokens, and of 128 weight rows
constexpr int WEIGHTS_AT = STAGES * X_BYTES, WEIGHT_STAGES = 3, AHEAD = STAGES - 3;  // quarters that tokens are ahead
constexpr int TILE_BYTES = larger(larger(FIRST::BYTES, SECOND::BYTES), larger(SHARED_FIRST::BYTES, SHARED_SECOND::BYTES));
constexpr int TILES_AT = WEIGHTS_AT + WEIGHT_STAGES * W_BYTES, TILE_STAGES = 2;  // spans of packed weights in flight
constexpr int ITEMS = 4;                                         // items whose pairs are in shared memory
constexpr int EXCHANGED = GATED ? 4 : 0;     // eights of tokens whose sums two warpgroups exchange at a time
constexpr int EXCHANGE_AT = TILES_AT + TILE_STAGES * WARPS * TILE_BYTES;
constexpr int PAIRS_AT = EXCHANGE_AT + CONSUMERS * EXCHANGED * 16;
#define WIDTHS 4, 6, 8, 9, 10, 12  // sixteens of tokens that code exists for
static_assert(PAIRS == 192 && STAGES >= 4 && STAGES <= 6, "see ITEMS");
constexpr bool SAME_FORMATS = is_same<FIRST, SECOND> && is_same<SHARED_FIRST, SHARED_SECOND>;
constexpr bool SHARED_ALIKE = is_same<FIRST, SHARED_FIRST> && is_same<SECOND, SHARED_SECOND>;

// Position of a thread in the pipeline of quarters: stages of weights, each with a barrier of its quarter being full and one of
// its being empty, and stages of tokens with a barrier of the copies' end. A stage of tokens is empty once the quarter that was
// STAGES before is.
struct Quarters {
    u32 full, empty, copied;
    int weights = 0, phase = 0, tokens = 0, tokens_phase = 0;

    __device__ Quarters(u64* full, u64* empty, u64* copied)
        : full(smem_address(full)), empty(smem_address(empty)), copied(smem_address(copied)) {}
    __device__ __forceinline__ u32 full_barrier() const { return full + 8 * weights; }
    __device__ __forceinline__ u32 empty_barrier() const { return empty + 8 * weights; }
    __device__ __forceinline__ void wait_full() const {
        mbarrier_wait(full_barrier(), phase);
        mbarrier_wait(copied + 8 * tokens, tokens_phase);
    }
    __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty_barrier(), phase ^ 1); }
    __device__ __forceinline__ void next() {
        if (++weights == WEIGHT_STAGES) weights = 0, phase ^= 1;
        if (++tokens == STAGES) tokens = 0, tokens_phase ^= 1;
    }
};

// Add the products of all quarters of 64 weight rows with 16 * N tokens.
template <int N>
__device__ __forceinline__ void multiply(Quarters& quarters, u32 stages, int n_quarters, float (&total)[2 * N][4]) {
    clear(total);
    u32 used = 0;
    const auto release = [&] {
        if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(used);
    };
#pragma unroll 1
    for (int i = 0; i < n_quarters; ++i) {
        quarters.wait_full();
        fence_async_proxy();  // wgmma reads through the async proxy what threads wrote; a fence of theirs waits for all copies
        const u32 weights = stages + WEIGHTS_AT + quarters.weights * W_BYTES + threadIdx.x / 128 * (W_BYTES / 2);
        const u64 a = wgmma_descriptor(weights), b = wgmma_descriptor(stages + quarters.tokens * X_BYTES);
        wgmma_fence();
        UNROLL for (int k = 0; k < 4; ++k) wgmma_ss(total, a + 2 * k, b + 2 * k, 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();
        if (i) release();  // the quarter before was read
        used = quarters.empty_barrier();
        quarters.next();
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(total);
    release();
}

// Store the inner values of 16 weight rows for eight tokens. Neighbouring rows, of lanes 4 apart, are stored together.
__device__ __forceinline__ void write_inner(float (&gates)[4], const float4& up, const int* pairs, int first, int n_tokens,
                                            int k, int lane, bool zeros, u8* inner) {
    const float ups[4] = {up.x, up.y, up.z, up.w};
    activate_rn<false>(gates);
    u32 h[4];
    UNROLL for (int i = 0; i < 4; ++i)
        h[i] = zeros ? 0 : half_saturated(__fmul_rn(__fmul_rn(gates[i], ups[i]), INNER_SCALE));
    const int odd = lane / 4 % 2, token = first + lane % 4 * 2 + odd;
    const u32 other = __shfl_xor_sync(~0u, odd ? h[0] | h[2] << 16 : h[1] | h[3] << 16, 4);
    if (token >= n_tokens) return;
    const u32 own[2] = {odd ? h[1] : h[0], odd ? h[3] : h[2]}, others[2] = {other & 0xffff, other >> 16};
    u16* span = (u16*)(inner + ((size_t)pairs[token] * INNER_SPANS + k / SPAN) * SPAN_BYTES);
    UNROLL for (int r = 0; r < 2; ++r) {
        const int at = k % SPAN + lane / 4 - odd + 8 * r;
        *(u32*)(span + span_order<INNER_ORDER>(at)) = odd ? others[r] | own[r] << 16 : own[r] | others[r] << 16;
    }
}

// A tile by a warp of the consumers: 16 weight rows from `stripe` times 16, and 16 * N tokens.
template <int N>
__device__ __forceinline__ void compute(int n_tokens, Quarters& quarters, u8* shared, int n_spans,
                                        const int* pairs, int stripe, int n_stripes, u8* inner, float* product) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float total[2 * N][4];
    multiply<N>(quarters, smem_address(shared), 4 * n_spans, total);
    if constexpr (GATED) {
        // Each warpgroup activates half of the tokens, for which the other one sends its sums.
        const bool is_second = warp >= WARPS / 2;
        float4* const sums = (float4*)(shared + EXCHANGE_AT) + threadIdx.x % 128;
        UNROLL for (int start = 0; start < N; start += EXCHANGED) {
            named_barrier_sync<1, CONSUMERS>();  // the other one has read the sums before
            UNROLL for (int m = 0; m < EXCHANGED && start + m < N; ++m) {
                const float *low = total[start + m], *high = total[N + start + m];
                sums[(is_second * EXCHANGED + m) * 128] = is_second ? make_float4(low[0], low[1], low[2], low[3])
                                                                    : make_float4(high[0], high[1], high[2], high[3]);
            }
            named_barrier_sync<1, CONSUMERS>();  // the sums of both are stored
            UNROLL for (int m = 0; m < EXCHANGED && start + m < N; ++m) {
                const int first = 8 * (start + m + is_second * N);
                const float4 other = sums[(!is_second * EXCHANGED + m) * 128];
                const float *low = total[start + m], *high = total[N + start + m];
                const float4 own = is_second ? make_float4(high[0], high[1], high[2], high[3])
                                             : make_float4(low[0], low[1], low[2], low[3]);
                const float4 gate = is_second ? other : own;
                float gates[4] = {gate.x, gate.y, gate.z, gate.w};
                if (first < n_tokens)
                    write_inner(gates, is_second ? own : other, pairs, first, n_tokens, stripe * 16, lane,
                                stripe >= n_stripes, inner);
            }
        }
    } else if (stripe < n_stripes) {
        UNROLL for (int n = 0; n < 2 * N; ++n) {
            UNROLL for (int e = 0; e < 2; ++e) {
                const int token = n * 8 + lane % 4 * 2 + e;
                if (token >= n_tokens) continue;
                float* const to = product + (size_t)pairs[token] * MODEL_DIM + stripe * 16 + lane / 4;
                __stcg(to, total[n][e]), __stcg(to + 8, total[n][2 + e]);
            }
        }
    }
}

// `compute` with the first code that is wide enough.
template <int N, int... WIDER, class... Arguments>
__device__ __forceinline__ void compute_n(int n_tokens, Arguments&&... arguments) {
    if constexpr (sizeof...(WIDER) > 0) {
        if (n_tokens > 16 * N) return compute_n<WIDER...>(n_tokens, arguments...);
    }
    compute<N>(n_tokens, arguments...);
}

// The experts' packed weights.
struct PackedWeights {
    const u8 *first, *second, *shared_first, *shared_second;

    // Tile of the first span of a stripe, and the bytes of a tile.
    __device__ const u8* stripe(int expert, int stripe, bool is_second, int& n_bytes) const {
        const bool is_shared = expert == EXPERTS;
        const int n_stripes = is_shared ? SHARED_STRIPES : STRIPES, n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        n_bytes = is_shared ? is_second ? SHARED_SECOND::BYTES : SHARED_FIRST::BYTES
                            : is_second ? SECOND::BYTES : FIRST::BYTES;
        const u8* from = is_shared ? is_second ? shared_second : shared_first : is_second ? second : first;
        return from + ((is_shared ? 0 : (size_t)expert * n_stripes) + min(stripe, n_stripes - 1)) * n_spans * n_bytes;
    }
};

__device__ __forceinline__ int stripe_of(int tile, int warp) {
    return tile % TILES_ACROSS * STRIPES_ACROSS + warp % STRIPES_ACROSS;
}

// Dequantise a span of 16 rows to the next four quarters; `rows`: these rows in the first stage. `copy` copies the tokens of
// the quarter that is AHEAD.
template <class Q, class Copy>
__device__ __forceinline__ void dequantise(Quarters& quarters, const u8* tile, u8* rows, int lane, const Copy& copy) {
    Weights<Q> weights(tile, lane);
    UNROLL for (int q = 0; q < 4; ++q) {
        u32 a[2][8];
        UNROLL for (int j = 0; j < 2; ++j) weights.load(2 * q + j, lane, a[j]);
        quarters.wait_empty();
        copy();
        u8* const to = rows + quarters.weights * W_BYTES + lane % 4 * 4;
        UNROLL for (int i = 0; i < 16; ++i) {
            const int row = lane / 4 + i % 2 * 8, chunk = i / 2;
            *(u32*)(to + row * 128 + (chunk ^ row % 8) * 16) = a[i / 8][i % 8];
        }
        __syncwarp();  // all lanes have written their part of it
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(quarters.full_barrier());
        quarters.next();
    }
}

// Bring the operands of all tiles of a block. A thread copies 16 bytes of every 32nd token.
__device__ __forceinline__ void produce(Quarters quarters, const u64* loaded, u8* shared, int n_tiles, const u8* x,
                                        const int* item_expert, const int* item_pairs, const PackedWeights& packed,
                                        int* experts) {
    constexpr int EACH = PAIRS / 32;
    const int thread = threadIdx.x % CONSUMERS, lane = thread % 32, warp = thread / 32, chunk = thread % 8, row = thread / 8;
    const bool is_second = warp >= WARPS / 2;
    u8* const own = shared + TILES_AT + warp * TILE_BYTES;  // the first of the warp's packed tiles

    int loading = blockIdx.x, expert_to_load = loading < n_tiles ? item_expert[loading / TILES_ACROSS] : 0, n_bytes;
    int spans_left = 0, slot = 0;
    const u8* from = nullptr;
    const auto load = [&] {  // the warp's next packed tile
        if (spans_left == 0) {
            if (loading >= n_tiles) return;
            from = packed.stripe(expert_to_load, stripe_of(loading, warp), is_second, n_bytes);
            spans_left = expert_to_load == EXPERTS ? SHARED_SPANS : OWN_SPANS;
            loading += gridDim.x;
            if (loading < n_tiles) expert_to_load = item_expert[loading / TILES_ACROSS];
        }
        if (lane == 0) {
            const u32 barrier = smem_address(loaded + slot * WARPS + warp);
            mbarrier_arrive_expect_tx(barrier, n_bytes);
            bulk_copy(smem_address(own + slot * WARPS * TILE_BYTES), from, n_bytes, barrier);
        }
        from += n_bytes, --spans_left, slot ^= 1;
    };
    UNROLL for (int i = 0; i < TILE_STAGES; ++i) load();

    int stage = 0, copied = blockIdx.x, quarters_left = 0, n = 0, quarter = 0, pairs[EACH], expert;
    const auto read_pairs = [&] {
        if (copied >= n_tiles) return;
        const int item = copied / TILES_ACROSS;
        expert = item_expert[item];
        UNROLL for (int i = 0; i < EACH; ++i) pairs[i] = item_pairs[item * PAIRS + row + 32 * i];
    };
    int tokens[EACH];
    const auto copy = [&] {  // the tokens of the next quarter
        if (quarters_left > 0 || copied < n_tiles) {
            if (quarters_left == 0) {
                int* const kept = (int*)(shared + PAIRS_AT) + n % ITEMS * PAIRS;
                UNROLL for (int i = 0; i < EACH; ++i) {
                    tokens[i] = GATED && pairs[i] >= 0 ? pairs[i] / SLOTS : pairs[i];
                    if (chunk == 0) kept[row + 32 * i] = pairs[i];
                }
                if (thread == 0) experts[n % ITEMS] = expert;
                quarters_left = 4 * (expert == EXPERTS ? SHARED_SPANS : OWN_SPANS), quarter = 0;
                copied += gridDim.x, ++n;
                read_pairs();
            }
            const u32 to = smem_address(shared) + stage * X_BYTES + row * 128 + (chunk ^ row % 8) * 16;
            const u8* values = x + quarter / 4 * SPAN_BYTES + quarter % 4 * 128 + chunk * 16;
            UNROLL for (int i = 0; i < EACH; ++i) {
                if (tokens[i] >= 0) cp_async_16(to + i * 4096, values + (size_t)tokens[i] * TOKEN_BYTES);
            }
            cp_async_mbarrier_arrive(quarters.copied + 8 * stage);
            if (++stage == STAGES) stage = 0;
            ++quarter, --quarters_left;
        }
    };
    read_pairs();
    UNROLL for (int i = 0; i < AHEAD; ++i) copy();
    u8* const rows = shared + WEIGHTS_AT + warp * 2048;
    for (int tile = blockIdx.x, spans = 0; tile < n_tiles; tile += gridDim.x) {
        const bool is_shared = item_expert[tile / TILES_ACROSS] == EXPERTS;
        const int n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        for (int span = 0; span < n_spans; ++span, ++spans) {
            const int at = spans % TILE_STAGES;
            mbarrier_wait(smem_address(loaded + at * WARPS + warp), spans / TILE_STAGES & 1);
            const u8* packed_tile = own + at * WARPS * TILE_BYTES;
            if (SHARED_ALIKE || !is_shared) {
                if (SAME_FORMATS || !is_second) {
                    dequantise<FIRST>(quarters, packed_tile, rows, lane, copy);
                } else {
                    dequantise<SECOND>(quarters, packed_tile, rows, lane, copy);
                }
            } else if (SAME_FORMATS || !is_second) {
                dequantise<SHARED_FIRST>(quarters, packed_tile, rows, lane, copy);
            } else {
                dequantise<SHARED_SECOND>(quarters, packed_tile, rows, lane, copy);
            }
            load();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_many(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
             const unsigned char* first, const unsigned char* second, const unsigned char* shared_first,
             const unsigned char* shared_second, unsigned char* inner, float* product) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ __align__(8) u64 full[WEIGHT_STAGES], empty[WEIGHT_STAGES], copied[STAGES], loaded[TILE_STAGES * WARPS];
    __shared__ int experts[ITEMS];
    u8* shared = dynamic + (-smem_address(dynamic) & 1023);
    const int warp = threadIdx.x / 32 % WARPS, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < WEIGHT_STAGES; ++s) {
            mbarrier_init(smem_address(full + s), WARPS * WARP_ARRIVALS);
            mbarrier_init(smem_address(empty + s), 2 * WARPGROUP_ARRIVALS);
        }
        for (int s = 0; s < STAGES; ++s) mbarrier_init(smem_address(copied + s), CONSUMERS);
        for (int i = 0; i < TILE_STAGES * WARPS; ++i) mbarrier_init(smem_address(loaded + i), 1);
    }
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised
    wait_on_dependent_grids();
    const int n_tiles = *n_items * TILES_ACROSS;
    Quarters quarters(full, empty, copied);
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<104>();
        produce(quarters, loaded, shared, n_tiles, x, item_expert, item_pairs, {first, second, shared_first, shared_second},
                experts);
        return;
    }
    setmaxnreg_inc<152>();
    for (int tile = blockIdx.x, n = 0; tile < n_tiles; tile += gridDim.x, ++n) {
        quarters.wait_full();  // the pairs are there
        const int* pairs = (const int*)(shared + PAIRS_AT) + n % ITEMS * PAIRS;
        const bool is_shared = experts[n % ITEMS] == EXPERTS;
        int n_tokens = 0;
        UNROLL for (int i = lane; i < PAIRS + lane; i += 32) n_tokens += __popc(__ballot_sync(~0u, pairs[i] >= 0));
        compute_n<WIDTHS>(n_tokens, quarters, shared, is_shared ? SHARED_SPANS : OWN_SPANS, pairs, stripe_of(tile, warp),
                          is_shared ? SHARED_STRIPES : STRIPES, inner, product);
    }
#endif
}
