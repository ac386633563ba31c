// One projection of the experts in prefill on Hopper, for items of up to PAIRS pairs, as prefill.cu but with wgmma: each of
// WARPGROUPS warpgroups multiplies 64 weight rows with all tokens of an item, along all of K.
//   GATED 1  inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE. The first half of the warpgroups has the gate, the second
//            half the same rows of the up projection. Grid (INNER_SPANS * 8 / WARPGROUPS, items)
//   GATED 0  product = inner @ down.T. Grid (MODEL_DIM / (64 * WARPGROUPS) rounded up, items)
// All warps copy with cp.async and multiply. Weights are dequantised to float16 in registers, rounded once or twice. Tokens
// are in the order of B fragments, see `span_order`. Block 128 * WARPGROUPS, shared memory 1024 + STAGES * STAGE_BYTES.
//
// Macros: those of shape.cuh; PAIRS, a multiple of 16 up to 128; WARPGROUPS,
// even; STAGES, spans in flight; BLOCKS_PER_SM, blocks that must fit a multiprocessor; GATED; INNER_ORDER, order of the
// inner values; FIRST and SECOND, formats of the two halves of the warpgroups; SHARED_FIRST and SHARED_SECOND, those of the
// shared expert.
// Bytes: the tiles of an expert once for every item, the tokens of an item once for every block.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/wgmma.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"
#include "weight_fragments.cuh"

#if !defined(PAIRS) || !defined(WARPGROUPS) || !defined(STAGES) || !defined(BLOCKS_PER_SM) || !defined(GATED) || \
    !defined(INNER_ORDER)
#error "PAIRS, WARPGROUPS, STAGES, BLOCKS_PER_SM, GATED and INNER_ORDER must be defined"
#endif
#if !defined(FIRST) || !defined(SECOND) || !defined(SHARED_FIRST) || !defined(SHARED_SECOND)
#error "FIRST, SECOND, SHARED_FIRST and SHARED_SECOND must be defined"
#endif

constexpr int NT = PAIRS / 8, WARPS = 4 * WARPGROUPS, THREADS = 32 * WARPS;
constexpr int N_SPANS = (MODEL_DIM + SPAN - 1) / SPAN, INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN;
constexpr int TILE_BYTES = larger(larger(FIRST::BYTES, SECOND::BYTES), larger(SHARED_FIRST::BYTES, SHARED_SECOND::BYTES));
constexpr int QUARTER = PAIRS * 128, X_BYTES = 4 * QUARTER;  // a quarter of a span: 64 values of all tokens
constexpr int STAGE_BYTES = X_BYTES + (WARPS * TILE_BYTES + 1023) / 1024 * 1024;
constexpr bool SHARED_ALIKE =
    is_same<FIRST, SHARED_FIRST> && is_same<SECOND, SHARED_SECOND> && FFN_DIM == SHARED_FFN_DIM;

struct Totals {
    float of[NT][4];
};

// Add the product of a tile (256 of K) with 16 * N tokens.
template <class Q, int N>
__device__ __forceinline__ void multiply_tile(const u8* tile, u32 x, int lane, Totals& totals) {
    auto& total = (float (&)[2 * N][4]) totals.of;
    Weights<Q> weights(tile, lane);
    u32 a[2][8];
    UNROLL for (int j = 0; j < 8; ++j) {
        weights.load(j, lane, a[j % 2]);
        wgmma_fence();
        UNROLL for (int h = 0; h < 2; ++h) {
            wgmma_rs(total, a[j % 2] + 4 * h, wgmma_descriptor(x + j / 2 * QUARTER + j % 2 * 64 + h * 32), 1);
        }
        wgmma_commit_group();
        wgmma_wait_group<1>();
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(total);
}

// Call `multiply_tile` for the number of 16-token groups that exist.
template <class Q, int N>
__device__ __forceinline__ void multiply_n_tokens(int n_sixteens, const u8* tile, u32 x, int lane, Totals& totals) {
    if constexpr (N < PAIRS / 16) {
        if (n_sixteens > N) return multiply_n_tokens<Q, N + 1>(n_sixteens, tile, x, lane, totals);
    }
    multiply_tile<Q, N>(tile, x, lane, totals);
}

template <class Q, int K>
__device__ __forceinline__ void multiply(const u8* weights, size_t stripe, const u8* x, int token_bytes, const int* tokens,
                                         int n_tokens, u8* shared, Totals& totals) {
    constexpr int N = (K + SPAN - 1) / SPAN, CHUNKS = 2 * SPAN / 16;
    const int lane = threadIdx.x % 32, own = X_BYTES + threadIdx.x / 32 * TILE_BYTES;
    const u8* tiles = weights + stripe * N * Q::BYTES;
    const u32 address = smem_address(shared);
    const auto fetch = [&](int span) {
        if (span < N) {
            const u32 stage = address + span % STAGES * STAGE_BYTES;
            UNROLL for (int at = 0; at < Q::BYTES; at += 512) {
                const int chunk = at + 16 * lane;
                if (chunk < Q::BYTES) cp_async_16(stage + own + chunk, tiles + (size_t)span * Q::BYTES + chunk);
            }
            for (int c = threadIdx.x; c < n_tokens * CHUNKS; c += THREADS) {
                const int token = c / CHUNKS, chunk = c % CHUNKS;
                const u8* from = x + (size_t)tokens[token] * token_bytes + span * SPAN_BYTES + chunk * 16;
                cp_async_16(stage + chunk / 8 * QUARTER + token * 128 + (chunk % 8 ^ token % 8) * 16, from);
            }
        }
        cp_async_commit_group();
    };
    UNROLL for (int s = 0; s < STAGES - 1; ++s) fetch(s);
    const int sixteens = (n_tokens + 15) / 16;
    for (int span = 0; span < N; ++span) {
        if (STAGES == 1) fetch(span);
        cp_async_wait_group<(STAGES > 1 ? STAGES - 2 : 0)>();
        fence_async_proxy();  // wgmma reads the copies through the async proxy
        __syncthreads();  // the span is visible, and the stage that is refilled below was read
        if (STAGES > 1) fetch(span + STAGES - 1);
        const u8* stage = shared + span % STAGES * STAGE_BYTES;
        multiply_n_tokens<Q, 1>(sixteens, stage + own, smem_address(stage), lane, totals);
        if (STAGES == 1) __syncthreads();  // the stage was read
    }
    cp_async_wait_group<0>();
}

// Write the inner values of 16 weight rows, and the sum of each token's 16 values. `up`: sums of the up projection, from the
// thread of the other warpgroup with the same rows.
__device__ __forceinline__ void write_inner(const Totals& gate, const float4* up, const int* pairs, int k, int lane,
                                            int n_tokens, bool zeros, u8* inner) {
    UNROLL for (int n = 0; n < NT; ++n) {
        if (n * 8 >= n_tokens) break;
        const float4 u = up[n * (THREADS / 2)];
        const float of[4] = {u.x, u.y, u.z, u.w};
        float gates[4];
        UNROLL for (int i = 0; i < 4; ++i) gates[i] = gate.of[n][i];
        activate_rn<false>(gates);
        u16 h[4];
        UNROLL for (int i = 0; i < 4; ++i)
            h[i] = zeros ? 0 : half_saturated(__fmul_rn(__fmul_rn(gates[i], of[i]), INNER_SCALE));
        write_inner_tile<INNER_ORDER>(h, n, pairs, n_tokens, k, lane, INNER_SPANS, inner);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
prefill(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
        const unsigned char* first, const unsigned char* second, const unsigned char* shared_first,
        const unsigned char* shared_second, unsigned char* inner, float* product) {
    extern __shared__ __align__(1024) u8 dynamic[];
    __shared__ int pairs[PAIRS], tokens[PAIRS], n_warps[PAIRS / 32];
    u8* shared = dynamic + (-smem_address(dynamic) & 1023);
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (blockIdx.y >= *n_items) return;
    const int expert = item_expert[blockIdx.y], lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (threadIdx.x < PAIRS) {
        const int pair = item_pairs[blockIdx.y * PAIRS + threadIdx.x];
        pairs[threadIdx.x] = pair;
        tokens[threadIdx.x] = GATED ? pair / SLOTS : pair;
        const u32 exists = __ballot_sync(~0u, pair >= 0);
        if (lane == 0) n_warps[warp] = __popc(exists);
    }
    __syncthreads();  // `pairs`, `tokens` and `n_warps` are complete
    int n_tokens = 0;
    for (int i = 0; i < PAIRS / 32; ++i) n_tokens += n_warps[i];
    const bool is_shared = expert == EXPERTS, is_second = warp >= WARPS / 2;
    const int stripes = GATED ? (is_shared ? SHARED_FFN_DIM : FFN_DIM) / 16 : MODEL_DIM / 16;
    const int stripe = GATED ? blockIdx.x * (WARPS / 2) + warp % (WARPS / 2) : blockIdx.x * WARPS + warp;
    const size_t at = (is_shared ? 0 : (size_t)expert * stripes) + min(stripe, stripes - 1);
    Totals totals;
    clear(totals.of);
    const int token_bytes = (GATED ? N_SPANS : INNER_SPANS) * SPAN_BYTES;
    constexpr bool SAME_FORMATS = is_same<FIRST, SECOND> && is_same<SHARED_FIRST, SHARED_SECOND>;
    constexpr int K = GATED ? MODEL_DIM : FFN_DIM, SHARED_K = GATED ? MODEL_DIM : SHARED_FFN_DIM;
    const u8* own = is_second ? is_shared ? shared_second : second : is_shared ? shared_first : first;
    if (SHARED_ALIKE || !is_shared) {
        if (SAME_FORMATS || !is_second) {
            multiply<FIRST, K>(own, at, x, token_bytes, tokens, n_tokens, shared, totals);
        } else {
            multiply<SECOND, K>(own, at, x, token_bytes, tokens, n_tokens, shared, totals);
        }
    } else if (SAME_FORMATS || !is_second) {
        multiply<SHARED_FIRST, SHARED_K>(own, at, x, token_bytes, tokens, n_tokens, shared, totals);
    } else {
        multiply<SHARED_SECOND, SHARED_K>(own, at, x, token_bytes, tokens, n_tokens, shared, totals);
    }
    if (GATED) {
        float4* up = (float4*)shared + threadIdx.x % (THREADS / 2);
        __syncthreads();  // no warp reads the stages that the sums overwrite
        if (is_second) {
            UNROLL for (int n = 0; n < NT; ++n) {
                const float* v = totals.of[n];
                if (n * 8 < n_tokens) up[n * (THREADS / 2)] = make_float4(v[0], v[1], v[2], v[3]);
            }
        }
        __syncthreads();  // the sums of the up projection are stored
        if (!is_second) write_inner(totals, up, pairs, stripe * 16, lane, n_tokens, stripe >= stripes, inner);
    } else if (stripe < stripes) {
        UNROLL for (int n = 0; n < NT; ++n)
            UNROLL for (int i = 0; i < 4; ++i) {
                const int token = n * 8 + lane % 4 * 2 + i % 2, k = stripe * 16 + lane / 4 + i / 2 * 8;
                if (token < n_tokens) __stcg(product + (size_t)pairs[token] * MODEL_DIM + k, totals.of[n][i]);
            }
    }
}
