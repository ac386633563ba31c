// One projection of the experts in prefill on Hopper where an expert has many tokens: the operations of prefill_hopper.cu,
// with the same bits. Each of two warpgroups multiplies 64 weight rows with all tokens of an item, so that weights are
// dequantised for twice the tokens.
//   GATED 1  inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE. The first warpgroup has the gate, the second one the
//            same rows of the up projection. A tile is an item and 64 inner values.
//   GATED 0  product = inner @ down.T. A tile is an item and 128 columns.
// The third warpgroup brings both operands: tokens in quarters of a span (cp.async, as rows of an item lie apart), weights
// in tiles of a span (bulk copies). It runs ahead of the others, also from one tile of the grid to the next.
//
// Grid any number of blocks: block b computes tiles b, b + grid and so on. Block 384, shared memory 1024 + PAIRS_AT + 4 *
// ITEMS * PAIRS.
//
// Macros: those of shape.cuh; PAIRS, a multiple of 16, 96 to 192; STAGES, quarters of tokens in flight; GATED; INNER_ORDER,
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

constexpr int WARPS = 8, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 128;  // WARPS: of the consumers
constexpr int N_SPANS = (MODEL_DIM + SPAN - 1) / SPAN, INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN;
constexpr int OWN_SPANS = GATED ? N_SPANS : (FFN_DIM + SPAN - 1) / SPAN;
constexpr int SHARED_SPANS = GATED ? N_SPANS : (SHARED_FFN_DIM + SPAN - 1) / SPAN;
constexpr int TOKEN_BYTES = (GATED ? N_SPANS : INNER_SPANS) * SPAN_BYTES;
constexpr int TILES_ACROSS = GATED ? INNER_SPANS * 4 : (MODEL_DIM + 127) / 128;
constexpr int STRIPES_ACROSS = GATED ? WARPS / 2 : WARPS;  // stripes of 16 rows of a tile
constexpr int STRIPES = (GATED ? FFN_DIM : MODEL_DIM) / 16, SHARED_STRIPES = (GATED ? SHARED_FFN_DIM : MODEL_DIM) / 16;

constexpr int QUARTER = PAIRS * 128;  // bytes of a quarter of a span: 64 values of all tokens
constexpr int WEIGHT_BYTES = larger(larger(FIRST::BYTES, SECOND::BYTES), larger(SHARED_FIRST::BYTES, SHARED_SECOND::BYTES));
constexpr int WEIGHT_STAGES = 2, ITEMS = 4;  // spans of weights in flight; items whose pairs are in shared memory
constexpr int EXCHANGED = GATED ? 4 : 0;     // eights of tokens whose sums two warpgroups exchange at a time
constexpr int EXCHANGE_AT = STAGES * QUARTER + WEIGHT_STAGES * WARPS * WEIGHT_BYTES;
constexpr int PAIRS_AT = EXCHANGE_AT + CONSUMERS * EXCHANGED * 16;
constexpr int LEAST = 6;  // fewest sixteens of tokens that code exists for
static_assert(PAIRS % 16 == 0 && PAIRS >= 16 * LEAST && STAGES >= 2 && STAGES <= 6, "see ITEMS");
constexpr bool SAME_FORMATS = is_same<FIRST, SECOND> && is_same<SHARED_FIRST, SHARED_SECOND>;
constexpr bool SHARED_ALIKE = is_same<FIRST, SHARED_FIRST> && is_same<SECOND, SHARED_SECOND>;

// Position of a thread in a pipeline of N stages, each with a barrier of its being full and one of its being empty.
template <int N>
struct Ring {
    u32 full, empty;
    int stage = 0, phase = 0;

    __device__ Ring(u64* full, u64* empty) : full(smem_address(full)), empty(smem_address(empty)) {}
    __device__ __forceinline__ u32 full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ u32 empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ void wait_full() const { mbarrier_wait(full_barrier(), phase); }
    __device__ __forceinline__ void wait_empty() const { mbarrier_wait(empty_barrier(), phase ^ 1); }
    __device__ __forceinline__ void next() {
        if (++stage == N) stage = 0, phase ^= 1;
    }
};
using Tokens = Ring<STAGES>;
using Tiles = Ring<WEIGHT_STAGES>;

// Add the products of all spans of a stripe with 16 * N tokens.
template <class Q, int N>
__device__ __forceinline__ void multiply(Tokens& tokens, Tiles& tiles, const u8* shared, int n_spans, int warp, int lane,
                                         float (&total)[2 * N][4]) {
    clear(total);
    u32 a[2][8], used = 0;
    const auto release = [&] {
        if (EVERY_LANE_ARRIVES || threadIdx.x % 128 == 0) mbarrier_arrive(used);
    };
#pragma unroll 1
    for (int span = 0; span < n_spans; ++span) {
        tiles.wait_full();
        Weights<Q> weights(shared + STAGES * QUARTER + (tiles.stage * WARPS + warp) * WEIGHT_BYTES, lane);
        UNROLL for (int j = 0; j < 8; ++j) {
            weights.load(j, lane, a[j % 2]);
            if (j % 2 == 0) {
                tokens.wait_full();
                fence_async_proxy();  // wgmma reads the tokens through the async proxy
            }
            const u32 x = smem_address(shared) + tokens.stage * QUARTER + j % 2 * 64;
            wgmma_fence();
            UNROLL for (int h = 0; h < 2; ++h) wgmma_rs(total, a[j % 2] + 4 * h, wgmma_descriptor(x + h * 32), 1);
            wgmma_commit_group();
            wgmma_wait_group<1>();
            if (j % 2 == 0 && used) release();  // the quarter before was read
            if (j % 2) used = tokens.empty_barrier(), tokens.next();
        }
        __syncwarp();  // all lanes have read the tile
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(tiles.empty_barrier());
        tiles.next();
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
template <class Q, int N>
__device__ __forceinline__ void compute(int n_tokens, Tokens& tokens, Tiles& tiles, u8* shared, int n_spans,
                                        const int* pairs, int stripe, int n_stripes, u8* inner, float* product) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float total[2 * N][4];
    multiply<Q, N>(tokens, tiles, shared, n_spans, warp, lane, total);
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

// `compute` with code for at least `n_tokens` tokens.
template <class Q, int N, class... Arguments>
__device__ __forceinline__ void compute_n(int n_tokens, Arguments&&... arguments) {
    if constexpr (N < PAIRS / 16) {
        if (n_tokens > 16 * N) return compute_n<Q, N + 1>(n_tokens, arguments...);
    }
    compute<Q, N>(n_tokens, arguments...);
}

// Producers: bring the tokens and weights of all tiles of a block. A thread copies 16 bytes of every 16th token.
__device__ __forceinline__ void produce(Tokens tokens, Tiles tiles, u8* shared, int thread, int n_tiles, const u8* x,
                                        const int* item_expert, const int* item_pairs, const u8* first, const u8* second,
                                        const u8* shared_first, const u8* shared_second, int* experts) {
    constexpr int EACH = PAIRS / 16;
    const int chunk = thread % 8, row = thread / 8;
    const int warp = thread % 32 * 4 + thread / 32;  // of the consumers whose weights this thread brings
    const bool is_second = warp >= WARPS / 2;
    for (int tile = blockIdx.x, n = 0; tile < n_tiles; tile += gridDim.x, ++n) {
        const int item = tile / TILES_ACROSS, expert = item_expert[item];
        const bool is_shared = expert == EXPERTS;
        int pairs[EACH];
        UNROLL for (int i = 0; i < EACH; ++i) pairs[i] = item_pairs[item * PAIRS + row + 16 * i];
        const int stripe = tile % TILES_ACROSS * STRIPES_ACROSS + warp % STRIPES_ACROSS;
        const int n_stripes = is_shared ? SHARED_STRIPES : STRIPES, n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        const int n_bytes = is_shared ? is_second ? SHARED_SECOND::BYTES : SHARED_FIRST::BYTES
                                      : is_second ? SECOND::BYTES : FIRST::BYTES;
        const u8* from = is_shared ? is_second ? shared_second : shared_first : is_second ? second : first;
        from += ((is_shared ? 0 : (size_t)expert * n_stripes) + min(stripe, n_stripes - 1)) * n_spans * n_bytes;
        for (int quarter = 0; quarter < 4 * n_spans; ++quarter) {
            if (quarter % 4 == 0) {
                tiles.wait_empty();
                if (warp < WARPS) {
                    mbarrier_arrive_expect_tx(tiles.full_barrier(), n_bytes);
                    const u32 to = smem_address(shared) + STAGES * QUARTER + (tiles.stage * WARPS + warp) * WEIGHT_BYTES;
                    bulk_copy(to, from + (size_t)(quarter / 4) * n_bytes, n_bytes, tiles.full_barrier());
                }
                tiles.next();
            }
            tokens.wait_empty();
            if (quarter == 0) {
                // Consumers are at most STAGES quarters and a tile behind, so the item before these ITEMS is done.
                const u32 kept = smem_address(shared) + PAIRS_AT + 4 * (n % ITEMS * PAIRS + row);
                UNROLL for (int i = 0; i < EACH; ++i) {
                    if (chunk == 0) cp_async_4(kept + 64 * i, item_pairs + item * PAIRS + row + 16 * i);
                }
                if (thread == 0) cp_async_4(smem_address(experts + n % ITEMS), item_expert + item);
            }
            const u32 to = smem_address(shared) + tokens.stage * QUARTER + row * 128 + (chunk ^ row % 8) * 16;
            const u8* values = x + quarter / 4 * SPAN_BYTES + quarter % 4 * 128 + chunk * 16;
            UNROLL for (int i = 0; i < EACH; ++i) {
                const int token = GATED ? pairs[i] / SLOTS : pairs[i];
                if (pairs[i] >= 0) cp_async_16(to + i * 2048, values + (size_t)token * TOKEN_BYTES);
            }
            cp_async_mbarrier_arrive(tokens.full_barrier());
            tokens.next();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill_many(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
             const unsigned char* first, const unsigned char* second, const unsigned char* shared_first,
             const unsigned char* shared_second, unsigned char* inner, float* product) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ __align__(8) u64 barriers[2 * (STAGES + WEIGHT_STAGES)];
    __shared__ int experts[ITEMS];
    u8* shared = dynamic + (-smem_address(dynamic) & 1023);
    Tokens tokens(barriers, barriers + STAGES);
    Tiles tiles(barriers + 2 * STAGES, barriers + 2 * STAGES + WEIGHT_STAGES);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            mbarrier_init(tokens.full + 8 * s, 128);
            mbarrier_init(tokens.empty + 8 * s, 2 * WARPGROUP_ARRIVALS);
        }
        for (int s = 0; s < WEIGHT_STAGES; ++s) {
            mbarrier_init(tiles.full + 8 * s, WARPS);
            mbarrier_init(tiles.empty + 8 * s, WARPS * WARP_ARRIVALS);
        }
    }
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised
    wait_on_dependent_grids();
    const int n_tiles = *n_items * TILES_ACROSS;
    if (warp >= WARPS) {
        setmaxnreg_dec<72>();
        produce(tokens, tiles, shared, threadIdx.x - CONSUMERS, n_tiles, x, item_expert, item_pairs, first, second,
                shared_first, shared_second, experts);
        return;
    }
    setmaxnreg_inc<216>();
    const bool is_second = warp >= WARPS / 2;
    for (int tile = blockIdx.x, n = 0; tile < n_tiles; tile += gridDim.x, ++n) {
        tokens.wait_full();  // the pairs are there
        const int* pairs = (const int*)(shared + PAIRS_AT) + n % ITEMS * PAIRS;
        const bool is_shared = experts[n % ITEMS] == EXPERTS;
        int n_tokens = 0;
        UNROLL for (int i = lane; i < PAIRS + lane; i += 32)
            n_tokens += __popc(__ballot_sync(~0u, i < PAIRS && pairs[i] >= 0));
        const int stripe = tile % TILES_ACROSS * STRIPES_ACROSS + warp % STRIPES_ACROSS;
        const int n_stripes = is_shared ? SHARED_STRIPES : STRIPES, n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        const auto with = [&](auto format) {
            compute_n<decltype(format), LEAST>(n_tokens, tokens, tiles, shared, n_spans, pairs, stripe, n_stripes, inner,
                                               product);
        };
        if (SHARED_ALIKE || !is_shared) {
            if (SAME_FORMATS || !is_second) {
                with(FIRST());
            } else {
                with(SECOND());
            }
        } else if (SAME_FORMATS || !is_second) {
            with(SHARED_FIRST());
        } else {
            with(SHARED_SECOND());
        }
    }
#endif
}
