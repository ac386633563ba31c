// One projection of the experts in prefill, for items of up to PAIRS pairs. A warp multiplies two tiles of 16 weight rows
// with all tokens of an item, along all of K:
//   GATED 1  inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE. The two tiles are one of the gate and one of the up
//            projection. Grid (INNER_SPANS * 16 / WARPS, items)
//   GATED 0  product = inner @ down.T. The two tiles are neighbours. Grid (MODEL_DIM / 16 / (2 * WARPS) rounded up, items)
// All warps copy weights and tokens span by span with cp.async, STAGES spans in flight. Block 32 * WARPS, shared memory
// STAGES * STAGE_BYTES.
//
// Macros: those of shape.cuh; PAIRS, a multiple of 16; WARPS; STAGES; GATED;
// FIRST and SECOND, formats of the two tiles; SHARED_FIRST and SHARED_SECOND, those of the shared expert.
// Bytes: the tiles of an expert once for every item, the tokens of an item once for every block.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/pdl.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"

#if !defined(PAIRS) || !defined(WARPS) || !defined(STAGES) || !defined(GATED)
#error "PAIRS, WARPS, STAGES and GATED must be defined"
#endif
#if !defined(FIRST) || !defined(SECOND) || !defined(SHARED_FIRST) || !defined(SHARED_SECOND)
#error "FIRST, SECOND, SHARED_FIRST and SHARED_SECOND must be defined"
#endif

template <class Q>
__host__ __device__ constexpr int span_bytes() {
    return SPAN / Q::TILE_K * Q::BYTES;
}

constexpr int THREADS = 32 * WARPS, NT = PAIRS / 8;
constexpr int SPANS = (MODEL_DIM + SPAN - 1) / SPAN, INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN;
constexpr int FIRST_BYTES = larger(span_bytes<FIRST>(), span_bytes<SHARED_FIRST>());
constexpr int SECOND_BYTES = larger(span_bytes<SECOND>(), span_bytes<SHARED_SECOND>());
constexpr int X_BYTES = PAIRS * SPAN_BYTES, STAGE_BYTES = X_BYTES + WARPS * (FIRST_BYTES + SECOND_BYTES);
constexpr bool SHARED_ALIKE =
    is_same<FIRST, SHARED_FIRST> && is_same<SECOND, SHARED_SECOND> && FFN_DIM == SHARED_FFN_DIM;

// Copy a tile to shared memory, by a warp.
template <class Q>
__device__ __forceinline__ void fetch_tile(u32 shared, const u8* tile, int lane) {
    UNROLL for (int i = 0; i < Q::BYTES / 512; ++i) cp_async_16(shared + 512 * i + 16 * lane, tile + 512 * i + 16 * lane);
    constexpr int DONE = Q::BYTES / 512 * 512;
    if (DONE + 16 * lane < Q::BYTES) cp_async_16(shared + DONE + 16 * lane, tile + DONE + 16 * lane);
}

// 16 weight rows of an expert.
template <class Q, int K>
struct Stripe {
    static constexpr int OF_ROW = (K + Q::TILE_K - 1) / Q::TILE_K, OF_SPAN = SPAN / Q::TILE_K;
    const u8* tiles;

    __device__ Stripe(const u8* weights, size_t stripe) : tiles(weights + stripe * OF_ROW * Q::BYTES) {}
    __device__ void fetch(u32 shared, int span, int lane) const {
        UNROLL for (int i = 0; i < OF_SPAN; ++i) {
            const int tile = span * OF_SPAN + i;
            if (OF_ROW % OF_SPAN == 0 || tile < OF_ROW) {
                fetch_tile<Q>(shared + i * Q::BYTES, tiles + (size_t)tile * Q::BYTES, lane);
            }
        }
    }
};

struct Totals {
    float of[2][NT][4];
};

// Add the products of one span of two stripes with the tokens `x`.
template <class A, class B, int K>
__device__ __forceinline__ void multiply_span(const u8* first, const u8* second, const u8* x, int span, int n_token_tiles,
                                              int lane, Totals& totals) {
    if constexpr (is_same<A, B>) {
        UNROLL for (int i = 0; i < Stripe<A, K>::OF_SPAN; ++i) {
            if (span * Stripe<A, K>::OF_SPAN + i >= Stripe<A, K>::OF_ROW) continue;
            const SharedTokens<A> tokens = {x, i * A::TILE_K, SPAN_BYTES, lane};
            multiply_tiles<A, 2, NT>({first + i * A::BYTES, second + i * A::BYTES}, tokens, lane, n_token_tiles, totals.of);
        }
    } else {
        float (&upper)[1][NT][4] = (float (&)[1][NT][4])totals.of[0], (&lower)[1][NT][4] = (float (&)[1][NT][4])totals.of[1];
        UNROLL for (int i = 0; i < Stripe<A, K>::OF_SPAN; ++i) {
            if (span * Stripe<A, K>::OF_SPAN + i >= Stripe<A, K>::OF_ROW) continue;
            const SharedTokens<A> tokens = {x, i * A::TILE_K, SPAN_BYTES, lane};
            multiply_tiles<A, 1, NT>({first + i * A::BYTES}, tokens, lane, n_token_tiles, upper);
        }
        UNROLL for (int i = 0; i < Stripe<B, K>::OF_SPAN; ++i) {
            if (span * Stripe<B, K>::OF_SPAN + i >= Stripe<B, K>::OF_ROW) continue;
            const SharedTokens<B> tokens = {x, i * B::TILE_K, SPAN_BYTES, lane};
            multiply_tiles<B, 1, NT>({second + i * B::BYTES}, tokens, lane, n_token_tiles, lower);
        }
    }
}

// Multiply two stripes with the tokens of an item along K.
template <class A, class B, int K>
__device__ __forceinline__ void multiply(const u8* first, size_t first_stripe, const u8* second, size_t second_stripe,
                                         const u8* x, int token_bytes, const int* tokens, int n_tokens, u8* shared,
                                         Totals& totals) {
    constexpr int N = (K + SPAN - 1) / SPAN, CHUNKS = SPAN_BYTES / 16;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const Stripe<A, K> a(first, first_stripe);
    const Stripe<B, K> b(second, second_stripe);
    const u32 address = smem_address(shared);
    const int own = X_BYTES + warp * (FIRST_BYTES + SECOND_BYTES);
    const auto fetch = [&](int span) {
        if (span < N) {
            const u32 stage = address + span % STAGES * STAGE_BYTES;
            a.fetch(stage + own, span, lane);
            b.fetch(stage + own + FIRST_BYTES, span, lane);
            for (int c = threadIdx.x; c < n_tokens * CHUNKS; c += THREADS) {
                const int token = c / CHUNKS, chunk = c % CHUNKS * 16;
                const u8* from = x + (size_t)tokens[token] * token_bytes + span * SPAN_BYTES;
                cp_async_16(stage + token * SPAN_BYTES + chunk, from + chunk);
            }
        }
        cp_async_commit_group();
    };
    UNROLL for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    const int n_token_tiles = (n_tokens + 7) / 8;
    for (int span = 0; span < N; ++span) {
        if (STAGES == 1) fetch(span);
        cp_async_wait_group<(STAGES > 1 ? STAGES - 2 : 0)>();
        __syncthreads();  // the span is visible, and the stage that is refilled below was read
        if (STAGES > 1) fetch(span + STAGES - 1);
        const u8* stage = shared + span % STAGES * STAGE_BYTES;
        multiply_span<A, B, K>(stage + own, stage + own + FIRST_BYTES, stage, span, n_token_tiles, lane, totals);
        if (STAGES == 1) __syncthreads();  // the stage was read
    }
    cp_async_wait_group<0>();
}

// Write the inner values of 16 weight rows, and the sum of each token's 16 values.
__device__ __forceinline__ void write_inner(const Totals& totals, const int* pairs, int k, int lane, int n_tokens,
                                            u8* inner) {
    UNROLL for (int n = 0; n < NT; ++n) {
        if (n * 8 >= n_tokens) break;
        float gates[4];
        UNROLL for (int i = 0; i < 4; ++i) gates[i] = totals.of[0][n][i];
        activate_rn<false>(gates);
        u16 h[4];
        UNROLL for (int i = 0; i < 4; ++i)
            h[i] = half_saturated(__fmul_rn(__fmul_rn(gates[i], totals.of[1][n][i]), INNER_SCALE));
        write_inner_tile<0>(h, n, pairs, n_tokens, k, lane, INNER_SPANS, inner);
    }
}

__device__ __forceinline__ void write_product(const Totals& totals, const int* pairs, int stripe, int lane, int n_tokens,
                                              float* product) {
    UNROLL for (int m = 0; m < 2; ++m)
        UNROLL for (int n = 0; n < NT; ++n)
            UNROLL for (int i = 0; i < 4; ++i) {
                const int token = n * 8 + lane % 4 * 2 + i % 2, k = (stripe + m) * 16 + lane / 4 + i / 2 * 8;
                if (token < n_tokens && k < MODEL_DIM)
                    __stcg(product + (size_t)pairs[token] * MODEL_DIM + k, totals.of[m][n][i]);
            }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
        const unsigned char* first, const unsigned char* second, const unsigned char* shared_first,
        const unsigned char* shared_second, unsigned char* inner, float* product) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ int pairs[PAIRS], tokens[PAIRS];
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (blockIdx.y >= *n_items) return;
    const int expert = item_expert[blockIdx.y], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int n_tokens = 0;
    for (int i = threadIdx.x; i < PAIRS; i += THREADS) {
        pairs[i] = item_pairs[blockIdx.y * PAIRS + i];
        tokens[i] = GATED ? pairs[i] / SLOTS : pairs[i];
    }
    __syncthreads();  // `pairs` and `tokens` are complete
    for (int i = 0; i < PAIRS; i += 32) {
        n_tokens += __popc(__ballot_sync(~0u, i + lane < PAIRS && pairs[(i + lane) % PAIRS] >= 0));
    }
    const bool is_shared = expert == EXPERTS;
    const int inner_rows = is_shared ? SHARED_FFN_DIM : FFN_DIM, stripes = GATED ? inner_rows / 16 : MODEL_DIM / 16;
    const int stripe = GATED ? blockIdx.x * WARPS + warp : (blockIdx.x * WARPS + warp) * 2;
    const size_t before = is_shared ? 0 : (size_t)expert * stripes;
    const size_t at = before + min(stripe, stripes - 1), next = before + min(stripe + 1, stripes - 1);
    Totals totals;
    clear(totals.of);
    const int token_bytes = (GATED ? SPANS : INNER_SPANS) * SPAN_BYTES;
    if (SHARED_ALIKE || !is_shared) {
        const u8 *a = is_shared ? shared_first : first, *b = GATED ? is_shared ? shared_second : second : a;
        multiply<FIRST, SECOND, GATED ? MODEL_DIM : FFN_DIM>(a, at, b, GATED ? at : next, x, token_bytes, tokens, n_tokens,
                                                             shared, totals);
    } else {
        const u8* b = GATED ? shared_second : shared_first;
        multiply<SHARED_FIRST, SHARED_SECOND, GATED ? MODEL_DIM : SHARED_FFN_DIM>(
            shared_first, at, b, GATED ? at : next, x, token_bytes, tokens, n_tokens, shared, totals);
    }
    if (GATED && stripe >= stripes) clear(totals.of[0]);
    if (GATED) {
        if (stripe < INNER_SPANS * 16) write_inner(totals, pairs, stripe * 16, lane, n_tokens, inner);
    } else {
        write_product(totals, pairs, stripe, lane, n_tokens, product);
    }
}
