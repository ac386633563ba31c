// One projection of the experts in prefill on Hopper, for items of up to PAIRS pairs, as prefill.cu but with wgmma: each of
// four warpgroups multiplies 64 weight rows with all tokens of an item, along all of K. Weights are dequantised to float16 in
// registers, rounded once or twice. Tokens are in the order of B fragments, see `span_order`.
//   GATED 1  inner = silu(x @ gate.T) * (x @ up.T) * INNER_SCALE. The first two warpgroups have the gate, the others the same
//            rows of the up projection. A tile is an item and 128 inner values.
//   GATED 0  product = inner @ down.T. A tile is an item and 256 columns.
// A fifth warpgroup brings both operands: tokens in quarters of a span (cp.async, as rows of an item lie apart), weights in
// tiles of a span (bulk copies). It runs ahead of the others, also from one tile of the grid to the next.
//
// Grid any number of blocks: block b computes tiles b, b + grid and so on. Block 640, shared memory 1024 + ROWS_AT + 4 * PAIRS.
//
// Macros: those of shape.cuh; PAIRS, a multiple of 32 up to 128; STAGES, quarters of tokens in flight; GATED; INNER_ORDER,
// order of the inner values; FIRST and SECOND, formats of the two halves of the consumers; ONLY, to multiply the items of the
// shared expert alone (1) or of the others (2): these have other formats.
// Bytes: the tiles of an expert once for every item, the tokens of an item once for every tile.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"
#include "weight_fragments.cuh"

#if !defined(PAIRS) || !defined(STAGES) || !defined(GATED) || !defined(INNER_ORDER) || !defined(ONLY)
#error "PAIRS, STAGES, GATED, INNER_ORDER and ONLY must be defined"
#endif
#if !defined(FIRST) || !defined(SECOND)
#error "FIRST and SECOND must be defined"
#endif

enum { SHARED = 1, ROUTED = 2 };
constexpr int NT = PAIRS / 8, WARPS = 16, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + 128;  // WARPS: of the consumers
constexpr int N_SPANS = (MODEL_DIM + SPAN - 1) / SPAN, INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN;
constexpr int OWN_SPANS = GATED ? N_SPANS : (FFN_DIM + SPAN - 1) / SPAN;
constexpr int SHARED_SPANS = GATED ? N_SPANS : (SHARED_FFN_DIM + SPAN - 1) / SPAN;
constexpr int TOKEN_BYTES = (GATED ? N_SPANS : INNER_SPANS) * SPAN_BYTES;
constexpr int TILES_ACROSS = GATED ? INNER_SPANS * 2 : (MODEL_DIM + 255) / 256;
constexpr int STRIPES_ACROSS = GATED ? WARPS / 2 : WARPS;  // stripes of 16 rows of a tile
constexpr int STRIPES = (GATED ? FFN_DIM : MODEL_DIM) / 16, SHARED_STRIPES = (GATED ? SHARED_FFN_DIM : MODEL_DIM) / 16;

constexpr int QUARTER = PAIRS * 128;  // bytes of a quarter of a span: 64 values of all tokens
constexpr int WEIGHT_BYTES = larger(FIRST::BYTES, SECOND::BYTES);
constexpr int WEIGHT_STAGES = 2, ITEMS = 4;  // spans of weights in flight; items whose pairs are in shared memory
constexpr int EXCHANGE_AT = STAGES * QUARTER + WEIGHT_STAGES * WARPS * WEIGHT_BYTES;
constexpr int PAIRS_AT = EXCHANGE_AT + GATED * 2 * CONSUMERS * 16, ROWS_AT = PAIRS_AT + 4 * ITEMS * PAIRS;
static_assert(PAIRS % 32 == 0 && PAIRS <= 128 && STAGES >= 2 && STAGES <= 8, "see ITEMS");

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

// total += a @ x.T, with the descriptor of x, for 32 of K and at least `n_tokens` tokens. With a loop over K for each number of
// tokens ptxas would need registers for all of them.
template <int N>
__device__ __forceinline__ void multiply_32(float (&total)[NT][4], const u32 (&a)[8], u64 x, int n_tokens) {
    if constexpr (N > 2) {
        if (n_tokens <= 16 * (N - 2)) return multiply_32<N - 2>(total, a, x, n_tokens);
    }
    UNROLL for (int h = 0; h < 2; ++h) wgmma_rs((float (&)[2 * N][4]) total, a + 4 * h, x + 2 * h, 1);
    wgmma_commit_group();
}

// Products of all spans of a stripe with the tokens of an item.
template <class Q>
__device__ __forceinline__ void multiply(Tokens& tokens, Tiles& tiles, const u8* shared, int n_spans, int n_tokens,
                                         float (&total)[NT][4]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const u64 x = wgmma_descriptor(smem_address(shared));  // in units of 16 bytes
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
            u32 (&now)[8] = a[j % 2];
            weights.load(j, lane, now);
            if (j % 2 == 0) {
                tokens.wait_full();
                fence_async_proxy();  // wgmma reads the tokens through the async proxy
            }
            wgmma_fence();
            multiply_32<PAIRS / 16>(total, now, x + tokens.stage * (QUARTER / 16) + j % 2 * 4, n_tokens);
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
__device__ __forceinline__ void write_inner(float (&gates)[4], const float (&ups)[4], const int* pairs, int first, int n_tokens,
                                            int k, int lane, bool zeros, u8* inner) {
    UNROLL for (int i = 0; i < 4; i += 2) activate_rn<false>((float (&)[2])gates[i]);  // four at a time need more registers
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

// Write what a warp of the consumers has multiplied: the 16 weight rows of its stripe and all tokens of an item. `first_stripe`:
// that of the first warp; `n_exchanged`: sums exchanged so far.
__device__ __forceinline__ void write_tile(const float (&total)[NT][4], int n_tokens, const int* pairs, int first_stripe,
                                           int n_stripes, u8* shared, int& n_exchanged, u8* inner, float* product) {
    if constexpr (GATED) {
        // Of every 16 tokens the warpgroups of the gate activate eight and those of the up projection the others, for which
        // they exchange sums.
#pragma unroll 1
        for (int start = 0; start < n_tokens; start += 16, ++n_exchanged) {
            u32 thread = threadIdx.x;
            asm volatile("" : "+r"(thread));  // so that nothing that follows from it is kept in registers
            const bool is_second = thread >= CONSUMERS / 2;
            const int stripe = first_stripe + thread / 32 % STRIPES_ACROSS, lane = thread % 32;
            float own[4], others[4];
            UNROLL for (int n = 0; n < NT; n += 2) {
                if (8 * n != start) continue;
                UNROLL for (int i = 0; i < 4; ++i) {
                    own[i] = is_second ? total[n + 1][i] : total[n][i];
                    others[i] = is_second ? total[n][i] : total[n + 1][i];
                }
            }
            float4* const sums = (float4*)(shared + EXCHANGE_AT) + n_exchanged % 2 * CONSUMERS;
            sums[thread] = make_float4(others[0], others[1], others[2], others[3]);
            named_barrier_sync<64>(1 + thread / 32 % (WARPS / 2));  // the sums of both are stored
            const float4 other = sums[thread ^ CONSUMERS / 2];
            const float received[4] = {other.x, other.y, other.z, other.w};
            float gates[4], ups[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                gates[i] = is_second ? received[i] : own[i];
                ups[i] = is_second ? own[i] : received[i];
            }
            write_inner(gates, ups, pairs, start + 8 * is_second, n_tokens, stripe * 16, lane, stripe >= n_stripes, inner);
        }
    } else {
        const int stripe = first_stripe + threadIdx.x / 32, lane = threadIdx.x % 32;
        if (stripe >= n_stripes) return;
        UNROLL for (int n = 0; n < NT; ++n) {
            UNROLL for (int e = 0; e < 2; ++e) {
                const int token = n * 8 + lane % 4 * 2 + e;
                if (token >= n_tokens) continue;
                float* const to = product + (size_t)pairs[token] * MODEL_DIM + stripe * 16 + lane / 4;
                __stcg(to, total[n][e]), __stcg(to + 8, total[n][2 + e]);
            }
        }
    }
}

// Tiles of a block: first, first + grid and so on, below `end`.
struct Range {
    int first, end;
    __device__ __forceinline__ explicit Range(const int* n_items)
        : first((ONLY == ROUTED ? n_items[1] : 0) * TILES_ACROSS + blockIdx.x), end(n_items[ONLY == SHARED] * TILES_ACROSS) {}
};

// Producers: bring the tokens and weights of all tiles of a block. Eight threads copy a row of 128 bytes.
__device__ __forceinline__ void produce(Tokens tokens, Tiles tiles, u8* shared, u32 thread, const u8* x,
                                        const int* item_expert, const int* item_pairs, const int* n_items, const u8* first,
                                        const u8* second, const u8* shared_first, const u8* shared_second, int* experts) {
    constexpr int EACH = PAIRS / 16, NONE = -1;
    int* const offsets = (int*)(shared + ROWS_AT);  // of rows in x
    const Range range(n_items);
    for (int tile = range.first, n = 0; tile < range.end; tile += gridDim.x, ++n) {
        const int item = tile / TILES_ACROSS, expert = item_expert[item];
        const bool is_shared = expert == EXPERTS;
        const int n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        named_barrier_sync<15, 128>();  // the offsets of the tile before were read
        if (thread < PAIRS) {
            const int pair = item_pairs[item * PAIRS + thread];
            offsets[thread] = pair < 0 ? NONE : (GATED ? pair / SLOTS : pair) * TOKEN_BYTES;
        }
        named_barrier_sync<15, 128>();  // the offsets are stored
#pragma unroll 1
        for (int quarter = 0; quarter < 4 * n_spans; ++quarter) {
            asm volatile("" : "+r"(thread));  // so that nothing that follows from it is kept in registers
            if (quarter % 4 == 0) {
                const int warp = thread % 32 * 4 + thread / 32;  // of the consumers whose weights this thread brings
                tiles.wait_empty();
                if (warp < WARPS) {
                    const int n_stripes = is_shared ? SHARED_STRIPES : STRIPES;
                    const bool is_second = warp >= WARPS / 2;
                    const int stripe = min(tile % TILES_ACROSS * STRIPES_ACROSS + warp % STRIPES_ACROSS, n_stripes - 1);
                    const int n_bytes = is_second ? SECOND::BYTES : FIRST::BYTES;
                    const u8* from = is_shared ? is_second ? shared_second : shared_first : is_second ? second : first;
                    from += (((is_shared ? 0 : (size_t)expert * n_stripes) + stripe) * n_spans + quarter / 4) * n_bytes;
                    mbarrier_arrive_expect_tx(tiles.full_barrier(), n_bytes);
                    const u32 to = smem_address(shared) + STAGES * QUARTER + (tiles.stage * WARPS + warp) * WEIGHT_BYTES;
                    bulk_copy(to, from, n_bytes, tiles.full_barrier());
                }
                tiles.next();
            }
            tokens.wait_empty();
            if (quarter == 0 && thread < PAIRS) {
                // Consumers are at most STAGES quarters and a tile behind, so the item before these ITEMS is done.
                cp_async_4(smem_address(shared) + PAIRS_AT + 4 * (n % ITEMS * PAIRS + thread), item_pairs + item * PAIRS + thread);
                if (thread == 0) cp_async_4(smem_address(experts + n % ITEMS), item_expert + item);
            }
            const int row = thread / 8 * EACH;
            const u32 to = smem_address(shared) + tokens.stage * QUARTER + row * 128;
            const u8* values = x + quarter / 4 * SPAN_BYTES + quarter % 4 * 128 + thread % 8 * 16;
            UNROLL for (int i = 0; i < EACH; i += 4) {
                const int4 four = *(const int4*)(offsets + row + i);
                const int of[4] = {four.x, four.y, four.z, four.w};
                UNROLL for (int e = 0; e < 4; ++e) {
                    const u32 chunk = (row + i + e) % 8 ^ thread % 8;
                    if (of[e] != NONE) cp_async_16(to + (i + e) * 128 + chunk * 16, values + (u32)of[e]);
                }
            }
            cp_async_mbarrier_arrive(tokens.full_barrier());
            tokens.next();
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
prefill(const unsigned char* x, const int* item_expert, const int* item_pairs, const int* n_items,
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
            mbarrier_init(tokens.empty + 8 * s, 4 * WARPGROUP_ARRIVALS);
        }
        for (int s = 0; s < WEIGHT_STAGES; ++s) {
            mbarrier_init(tiles.full + 8 * s, WARPS);
            mbarrier_init(tiles.empty + 8 * s, WARPS * WARP_ARRIVALS);
        }
    }
    launch_dependent_grids();
    __syncthreads();  // the barriers are initialised
    wait_on_dependent_grids();
    if (warp >= WARPS) {
        setmaxnreg_dec<32>();
        produce(tokens, tiles, shared, threadIdx.x - CONSUMERS, x, item_expert, item_pairs, n_items, first, second,
                shared_first, shared_second, experts);
        return;
    }
    setmaxnreg_inc<112>();
    const Range range(n_items);
    for (int tile = range.first, n = 0, n_exchanged = 0; tile < range.end; tile += gridDim.x, ++n) {
        tokens.wait_full();  // the pairs are there
        const int* pairs = (const int*)(shared + PAIRS_AT) + n % ITEMS * PAIRS;
        const bool is_shared = experts[n % ITEMS] == EXPERTS;
        int n_tokens = 0;
        UNROLL for (int i = 0; i < PAIRS; i += 32) n_tokens += __popc(__ballot_sync(~0u, pairs[i + lane] >= 0));
        const int n_spans = is_shared ? SHARED_SPANS : OWN_SPANS;
        float total[NT][4];
        if (is_same<FIRST, SECOND> || warp < WARPS / 2) {
            multiply<FIRST>(tokens, tiles, shared, n_spans, n_tokens, total);
        } else {
            multiply<SECOND>(tokens, tiles, shared, n_spans, n_tokens, total);
        }
        write_tile(total, n_tokens, pairs, tile % TILES_ACROSS * STRIPES_ACROSS, is_shared ? SHARED_STRIPES : STRIPES, shared,
                   n_exchanged, inner, product);
    }
#endif
}
