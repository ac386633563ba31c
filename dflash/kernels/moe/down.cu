// Down projection of the experts: product = down @ inner. `down_small` is for few rows and also combines the experts of each
// row; `down` takes the work items of expert_items.cu.
//
// A warp multiplies stripes of 16 weight rows of an expert with up to four tokens. Sums of spans are added in order, so both
// entry points give a pair the same bits. Bulk copies prefetch the tiles.
//   down        product[pair] = down @ inner[pair]. A unit of work is WARPS times WARP_STRIPES stripes of an item; a block takes a
//               range of units. Every warp is its own producer (copies) and consumer (multiplies). Grid: blocks, at most as
//               many as units; block 32 * WARPS; shared memory X_BYTES + WARPS * STAGES * TILES * PIECE.
//   down_small  out[row] += sum of its experts. PARTS warps for each expert take its spans in turn. Grid (MODEL_DIM / 16,
//               rows), block 32 * SLOTS * PARTS, shared memory SLOTS * PARTS * (PIECE + SPAN_BYTES).
//
// Macros: those of shape.cuh; DOWN and SHARED_DOWN, formats; for `down`: WARPS; WARP_STRIPES; STAGES, spans of tiles in flight
// a warp; BLOCKS_PER_SM, blocks that must fit a multiprocessor.
// Bytes: `down`, the tiles of an expert once for every four of its pairs; `down_small`, once for every pair, repeats from
// the L2 cache.
#include "../gpu/include/early_read.cuh"
#include "combine.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"

#if !defined(DOWN) || !defined(SHARED_DOWN) || !defined(WARPS) || !defined(WARP_STRIPES) || !defined(STAGES) || \
    !defined(BLOCKS_PER_SM)
#error "DOWN, SHARED_DOWN, WARPS, WARP_STRIPES, STAGES and BLOCKS_PER_SM must be defined"
#endif

using Row = Spans<DOWN, FFN_DIM>;
using SharedRow = Spans<SHARED_DOWN, SHARED_FFN_DIM>;
constexpr int PAIRS = 4, STRIPES = MODEL_DIM / 16;
constexpr int INNER_SPANS = larger(Row::N, SharedRow::N), TOKEN_BYTES = INNER_SPANS * SPAN_BYTES;
constexpr int X_STRIDE = TOKEN_BYTES + (INNER_SPANS % 2 ? 0 : 64), X_BYTES = PAIRS * X_STRIDE;
constexpr int PIECE = larger(Row::BYTES, SharedRow::BYTES),
              TILES = STRIPES < WARP_STRIPES ? STRIPES : WARP_STRIPES;  // bytes of a span of a stripe; stripes of a warp
constexpr int UNITS = (STRIPES + TILES * WARPS - 1) / (TILES * WARPS);  // units of an item
constexpr int PARTS = INNER_SPANS < 32 / SLOTS ? INNER_SPANS : 32 / SLOTS;
// True if the shared expert has the shape and format of the others, so that one code path serves both.
constexpr bool SHARED_ALIKE = is_same<DOWN, SHARED_DOWN> && FFN_DIM == SHARED_FFN_DIM;
// Blocks of `down_small` for whose registers a multiprocessor has space, so that they start beside the launch before.
constexpr int SMALL_BLOCKS = SHARED_ALIKE && BLOCKS_PER_SM > 1 && SLOTS * PARTS <= 20 ? 2 : 1;

// Producer role of a warp: copies the spans of its stripes, unit by unit.
struct Producer {
    const u8 *weights, *shared_weights;
    const int* item_expert;
    u32 ring, barriers;
    int item, unit, last_item, expert, next_expert, span, slot, left;

    __device__ Producer(const u8* weights, const u8* shared_weights, const int* item_expert, u32 ring, u32 barriers,
                        int begin, int end)
        : weights(weights),
          shared_weights(shared_weights),
          item_expert(item_expert),
          ring(ring),
          barriers(barriers),
          span(0),
          slot(0),
          left(end - begin) {
        item = begin / UNITS, unit = begin % UNITS, last_item = (end - 1) / UNITS;
        expert = __ldcg(item_expert + item);
        next_expert = item < last_item ? __ldcg(item_expert + item + 1) : 0;
    }
    __device__ __forceinline__ void fetch(int warp, int lane) {
        if (left == 0) return;
        const bool is_shared = expert == EXPERTS;
        const u32 to = ring + slot * TILES * PIECE, barrier = barriers + 8 * slot;
        const int stripe = min((unit * WARPS + warp) * TILES, STRIPES - TILES);
        slot = slot + 1 == STAGES ? 0 : slot + 1;
        if (SHARED_ALIKE || !is_shared) {
            const u8* matrix = Row::of(is_shared ? shared_weights : weights, is_shared ? 0 : expert, STRIPES);
            Row::fetch<TILES>(to, matrix, stripe, span, barrier, lane);
        } else {
            SharedRow::fetch<TILES>(to, shared_weights, stripe, span, barrier, lane);
        }
        if (++span < (is_shared ? SharedRow::N : Row::N)) return;
        span = 0, --left;
        if (++unit < UNITS) return;
        unit = 0, ++item, expert = next_expert;
        if (item < last_item) next_expert = __ldcg(item_expert + item + 1);
    }
};

__device__ __forceinline__ void fetch_token(u32 shared, const u8* inner, int pair, int n_bytes, int thread, int threads) {
    const u8* from = inner + (size_t)pair * TOKEN_BYTES;
    for (int c = 16 * thread; c < n_bytes; c += 16 * threads) cp_async_16(shared + c, from + c);
}

// Multiply the units of one item.
template <class Q, class R>
__device__ __forceinline__ void multiply_item(Producer& producer, PipelineState<STAGES, TILES * PIECE>& ring, const u8* x,
                                              int first, int n_units, int pair, int warp, int lane, float* product) {
    for (int unit = first; unit < first + n_units; ++unit) {
        float total[TILES][1][4];
        clear(total);
#pragma unroll 1
        for (int span = 0; span < R::N; ++span) {
            const u8 *tiles = ring.wait(), *stripes[TILES];
            UNROLL for (int m = 0; m < TILES; ++m) stripes[m] = tiles + m * R::step(span);
            float of_span[TILES][1][4];
            clear(of_span);
            R::template multiply<TILES>(stripes, span, TokensOfTile<Q, PAIRS>{x + span * SPAN_BYTES, X_STRIDE, lane}, lane,
                                        of_span);
            UNROLL for (int m = 0; m < TILES; ++m)
                UNROLL for (int e = 0; e < 4; ++e) total[m][0][e] = __fadd_rn(total[m][0][e], of_span[m][0][e]);
            __syncwarp();  // all lanes have read the tiles that `fetch` overwrites
            producer.fetch(warp, lane);
            ring.advance();
        }
        const int stripe = min((unit * WARPS + warp) * TILES, STRIPES - TILES);
        UNROLL for (int m = 0; m < TILES; ++m)
            UNROLL for (int e = 0; e < 4; ++e) {
                const int to = __shfl_sync(~0u, pair, lane % 4 * 2 + e % 2);
                if (to >= 0)
                    __stcg(product + (size_t)to * MODEL_DIM + (stripe + m) * 16 + lane / 4 + e / 2 * 8, total[m][0][e]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS_PER_SM)
down(const unsigned char* inner, const int* item_expert, const int* item_pairs, const int* n_items,
     const unsigned char* weights, const unsigned char* shared_weights, float* product) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ __align__(8) u64 barriers[WARPS][STAGES];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u8* own = shared + X_BYTES + warp * (STAGES * TILES * PIECE);
    if (lane < STAGES) mbarrier_init_for_copies(smem_address(&barriers[warp][lane]));
    launch_dependent_grids();
    __syncwarp();  // the barriers of the warp are initialised
    // This launch starts when every block of the one before has ended its wait, so that all earlier launches have ended: the
    // items are readable, and only the tokens have to be waited for.
    const int units = __ldcg(n_items) * UNITS;
    const int begin = (int)((long long)units * blockIdx.x / gridDim.x);
    const int end = (int)((long long)units * (blockIdx.x + 1) / gridDim.x);
    if (begin >= end) {
        wait_on_dependent_grids();
        return;
    }
    Producer producer(weights, shared_weights, item_expert, smem_address(own), smem_address(barriers[warp]), begin, end);
    UNROLL for (int i = 0; i < STAGES; ++i) producer.fetch(warp, lane);
    PipelineState<STAGES, TILES * PIECE> ring(own, barriers[warp]);
    wait_on_dependent_grids();
    for (int at = begin; at < end;) {
        const int item = at / UNITS, first = at % UNITS, n_units = min(end - at, UNITS - first);
        const int expert = __ldcg(item_expert + item), pair = lane < PAIRS ? __ldcg(item_pairs + item * PAIRS + lane) : -1;
        const bool is_shared = expert == EXPERTS;
        __syncthreads();  // no warp reads the tokens of the previous item
        UNROLL for (int i = 0; i < PAIRS; ++i) {
            const int from = __shfl_sync(~0u, pair, i);
            const int n_bytes = (is_shared ? SharedRow::N : Row::N) * SPAN_BYTES;
            if (from >= 0) fetch_token(smem_address(shared) + i * X_STRIDE, inner, from, n_bytes, threadIdx.x, 32 * WARPS);
        }
        cp_async_commit_group();
        cp_async_wait_group<0>();
        __syncthreads();  // the tokens are visible to all warps
        if (SHARED_ALIKE || !is_shared) {
            multiply_item<DOWN, Row>(producer, ring, shared, first, n_units, pair, warp, lane, product);
        } else {
            multiply_item<SHARED_DOWN, SharedRow>(producer, ring, shared, first, n_units, pair, warp, lane, product);
        }
        at += n_units;
    }
}

// Products of every PARTS-th span of 16 weight rows with one pair, whose values are polled. The first span of the weights is
// being copied.
template <class Q, class R>
__device__ __forceinline__ void multiply_pair(const u8* matrix, const u8* inner, int pair, u8* own, u32 barrier, int part,
                                              float (*products)[16]) {
    const int lane = threadIdx.x % 32;
    const u32 address = smem_address(own);
    int phase = 0;
    for (int span = part; span < R::N; span += PARTS, phase ^= 1) {
        if (span != part) R::template fetch<1>(address, matrix, blockIdx.x, span, barrier, lane);
        const u8* from = inner + (size_t)pair * TOKEN_BYTES + span * SPAN_BYTES + 16 * lane;
        uint4 first, rest = make_uint4(0, 0, 0, 0);
        poll<POLL_PAUSE>([&] {
            first = load_published_16(from);
            if (lane < SPAN_BYTES / 16 - 32) rest = load_published_16(from + 512);
            return all_halves_written(first) && all_halves_written(rest);
        });
        st_shared_16(address + PIECE + 16 * lane, first);
        if (lane < SPAN_BYTES / 16 - 32) st_shared_16(address + PIECE + 512 + 16 * lane, rest);
        __syncwarp();  // the span of the token is visible
        float total[1][1][4];
        clear(total);
        mbarrier_wait(barrier, phase);
        R::template multiply<1>({own}, span, TokensOfTile<Q, 1>{own + PIECE, 0, lane}, lane, total);
        if (lane % 4 == 0) products[span][lane / 4] = total[0][0][0], products[span][lane / 4 + 8] = total[0][0][2];
        if (R::N <= PARTS) break;  // known to the compiler, which then keeps fewer registers
        __syncwarp();  // all lanes have read the span
    }
}

extern "C" __global__ void __launch_bounds__(32 * SLOTS * PARTS, SMALL_BLOCKS)
down_small(const unsigned char* inner, const int* experts, const float* factors, const int* counts,
           const unsigned char* weights, const unsigned char* shared_weights, const float* gain,
           unsigned short* halves, float* squares, float* out, float* logits) {
    const OutputNorm norm = {gain, halves, squares};
    extern __shared__ __align__(128) u8 shared[];
    __shared__ __align__(8) u64 barriers[SLOTS * PARTS];
    __shared__ float products[SLOTS][INNER_SPANS][16], factors_of_row[SLOTS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = warp / PARTS, part = warp % PARTS;
    const int row = blockIdx.y, pair = row * SLOTS + slot;
    if (lane == 0) mbarrier_init_for_copies(smem_address(barriers + warp));
    launch_dependent_grids();
    __syncwarp();  // the barrier of the warp is initialised
    u8* own = shared + warp * (PIECE + SPAN_BYTES);
    if (row < counts[0]) {
        const u32 address = smem_address(own), barrier = smem_address(barriers + warp);
        const u8* matrix = shared_weights;
        if (slot < N_USED) {
            u32 expert;
            poll<POLL_PAUSE>([&] { return (expert = load_published(experts + row * N_USED + slot)) != EMPTY; });
            matrix = Row::of(weights, expert, STRIPES);
        }
        if (SHARED_ALIKE || slot < N_USED) {
            if (part < Row::N) Row::fetch<1>(address, matrix, blockIdx.x, part, barrier, lane);
        } else {
            if (part < SharedRow::N) SharedRow::fetch<1>(address, matrix, blockIdx.x, part, barrier, lane);
        }
        // The launch before has ended its wait, so that the stream is complete.
        const int column = blockIdx.x * 16 + lane % 16;
        float* to = out + (size_t)row * MODEL_DIM + column;
        float before = 0.0f, gain_of_column = 0.0f;
        if (warp == 0) {
            before = __ldcg(to);
            if (norm.halves) gain_of_column = gain[column];
            u32 factor = 0;
            poll<POLL_PAUSE>([&] { return lane >= SLOTS || (factor = load_published(factors + row * SLOTS + lane)) != EMPTY; });
            if (lane < SLOTS) factors_of_row[lane] = __uint_as_float(factor);
        }
        if (SHARED_ALIKE || slot < N_USED) {
            multiply_pair<DOWN, Row>(matrix, inner, pair, own, barrier, part, products[slot]);
        } else {
            multiply_pair<SHARED_DOWN, SharedRow>(matrix, inner, pair, own, barrier, part, products[slot]);
        }
        __syncthreads();  // the products of all warps are stored
        if (threadIdx.x < 16) {
            const auto product = [&](int i) {
                float total = 0.0f;
                for (int span = 0; span < (i < N_USED ? Row::N : SharedRow::N); ++span) {
                    total = __fadd_rn(total, products[i][span][threadIdx.x]);
                }
                return total;
            };
            const float total = __fadd_rn(before, combine<SLOTS>(factors_of_row, product));
            *to = total;
            if (norm.halves) {
                norm.halves[(size_t)row * MODEL_DIM + column] = norm.half_of(total, gain_of_column);
                float sum = __fmul_rn(total, total);
                UNROLL for (int m = 1; m < 16; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(0xffffu, sum, m));
                if (threadIdx.x == 0) norm.squares[(size_t)row * STRIPES + blockIdx.x] = sum;
            }
        }
    }
    wait_on_dependent_grids();
    if (blockIdx.x == 0) clear_published(logits + row * (EXPERTS + N_SHARED), 4 * (EXPERTS + N_SHARED), threadIdx.x, blockDim.x);
}
