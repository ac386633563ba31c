// Router of a prefill: RMS norm, logits, top-k and the work items of the next kernels, for many rows. It computes the same
// as router.cu and expert_items.cu, but an item has up to PAIRS pairs, shared evenly between the items of an expert.
//
//   normalize     normed = x * gain / rms(x), in the layout of activation_spans.cuh and in float32; also the logit of a
//                 shared expert. Grid (rows), block 256. The first block clears the counts of the experts.
//   logits        logits = normed @ router.T; each float32 is split into two tf32, so the result is about as accurate as
//                 float32. Grid (EXPERTS / 64, rows / 32, both rounded up), block 256, shared memory 4 * STAGES * 96 * PITCH.
//   logits_many   The same with the same bits for 128 rows a block, and MANY_STAGES * 192 in place of STAGES * 96.
//   topk          Grid (rows / 8 rounded up), block 256: a warp routes a row.
//   expert_items  Grid (EXPERTS + 1), block 256: a block makes the items of an expert.
//
// Macros: MODEL_DIM, EXPERTS, N_USED, N_SHARED, the shape; PAIRS; STAGES and MANY_STAGES of `logits` and `logits_many`;
// NORMED_ORDER, order of the normed values, see `span_order`; OWN_GAIN, see router.cu. Bytes: `normalize` about 10 * MODEL_DIM a
// row; `logits` 4 * MODEL_DIM a row for every 64 experts, and an expert for every 32 or 128 rows, mostly from the L2 cache.
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "prefix_sum.cuh"
#include "topk.cuh"
#include "activation_spans.cuh"

#if !defined(MODEL_DIM) || !defined(EXPERTS) || !defined(PAIRS) || !defined(STAGES) || !defined(MANY_STAGES) || \
    !defined(NORMED_ORDER)
#error "MODEL_DIM, EXPERTS, PAIRS, STAGES, MANY_STAGES and NORMED_ORDER must be defined"
#endif
#ifndef OWN_GAIN
#define OWN_GAIN 0
#endif
constexpr int VECTORS = MODEL_DIM / 4, SPANS = (MODEL_DIM + SPAN - 1) / SPAN, PER_THREAD = (SPANS * SPAN / 4 + 255) / 256;

__device__ __forceinline__ float block_sum(float x) {
    __shared__ float of_warp[8];
    x = warp_sum(x);
    __syncthreads();  // `of_warp` of the previous call was read
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;
    __syncthreads();  // the sums of all warps are stored
    float sum = 0.0f;
    UNROLL for (int i = 0; i < 8; ++i) sum = __fadd_rn(sum, of_warp[i]);
    return sum;
}

__device__ __forceinline__ float dot(const float4& a, const float4& b, float sum) {
    return __fmaf_rn(a.x, b.x, __fmaf_rn(a.y, b.y, __fmaf_rn(a.z, b.z, __fmaf_rn(a.w, b.w, sum))));
}

__device__ __forceinline__ float4 scaled(const float4& x, float factor) {
    return make_float4(__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor));
}

extern "C" __global__ void __launch_bounds__(256)
normalize(const float* stream, const float* gain, const float* shared_weights, const int* row_counts, int first_row,
          float eps, unsigned char* normed, float* exact, float* shared_logits, int* count) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (blockIdx.x == 0) {
        for (int e = threadIdx.x; e < EXPERTS; e += 256) count[e] = 0;
    }
    if (first_row + (int)blockIdx.x >= row_counts[0]) return;
    const float4* from = (const float4*)(stream + (size_t)(first_row + blockIdx.x) * MODEL_DIM);
    float4 x[PER_THREAD];
    float squares = 0.0f;
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        const int vector = i * 256 + threadIdx.x;
        x[i] = vector < VECTORS ? from[vector] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        squares = dot(x[i], x[i], squares);
    }
    const float inverse = __frsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(squares), (float)MODEL_DIM), eps));
    float logit = 0.0f;
    UNROLL for (int i = 0; i < PER_THREAD; ++i) {
        const int vector = i * 256 + threadIdx.x;
        if (vector < VECTORS) {
            const float4 g = ((const float4*)gain)[vector];
            const float4 plain = x[i];
            x[i].x = __fmul_rn(__fmul_rn(x[i].x, g.x), inverse), x[i].y = __fmul_rn(__fmul_rn(x[i].y, g.y), inverse);
            x[i].z = __fmul_rn(__fmul_rn(x[i].z, g.z), inverse), x[i].w = __fmul_rn(__fmul_rn(x[i].w, g.w), inverse);
            ((float4*)(exact + (size_t)blockIdx.x * MODEL_DIM))[vector] = OWN_GAIN ? scaled(plain, inverse) : x[i];
            if (N_SHARED) logit = dot(x[i], ((const float4*)shared_weights)[vector], logit);
        }
        u8* to = normed + (size_t)blockIdx.x * SPANS * SPAN_BYTES;
        if (vector < SPANS * SPAN / 4) write_values<NORMED_ORDER>(to, vector, x[i], 1.0f);
    }
    if (!N_SHARED) return;
    logit = block_sum(logit);
    if (threadIdx.x == 0) shared_logits[blockIdx.x] = logit;
}

constexpr int OUTS = 64, STEP = 64, PITCH = STEP + 4;

// Split x into `high`, the bits that tf32 holds, and `low`, the rest.
__device__ __forceinline__ void split(float x, u32& high, u32& low) {
    high = __float_as_uint(x) & 0xffffe000u;
    low = __float_as_uint(__fsub_rn(x, __uint_as_float(high)));
}

// Logits of ROWS rows and OUTS experts, with N_STAGES steps of K in flight. A warp has M tiles of 16 rows. The bits do not depend
// on these.
template <int ROWS, int N_STAGES, int M>
__device__ __forceinline__ void logits_of(const float* exact, const float* weights, const int* row_counts, int first_row,
                                          float* out) {
    constexpr int TILE_ROWS = ROWS + OUTS, ROW_WARPS = ROWS / (16 * M), N = OUTS / 8 * ROW_WARPS / 8;
    extern __shared__ __align__(16) float tiles[];  // (N_STAGES, TILE_ROWS, PITCH): the rows, then the experts
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row_0 = blockIdx.y * ROWS, expert_0 = blockIdx.x * OUTS, n_rows = row_counts[0] - first_row;
    if (row_0 >= n_rows) return;
    const auto fetch = [&](int step) {
        const u32 to = smem_address(tiles + step % N_STAGES * TILE_ROWS * PITCH);
        UNROLL for (int i = 0; i < TILE_ROWS * STEP / 4 / 256; ++i) {
            const int c = i * 256 + threadIdx.x, line = c / (STEP / 4), k = step * STEP + c % (STEP / 4) * 4;
            const bool is_row = line < ROWS;
            const int at = is_row ? min(row_0 + line, n_rows - 1) : min(expert_0 + line - ROWS, EXPERTS - 1);
            const float* from = (is_row ? exact : weights) + (size_t)at * MODEL_DIM + min(k, MODEL_DIM - 4);
            cp_async_16_zfill(to + 4 * (line * PITCH + c % (STEP / 4) * 4), from, k < MODEL_DIM);
        }
        cp_async_commit_group();
    };
    constexpr int STEPS = (MODEL_DIM + STEP - 1) / STEP;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row = warp % ROW_WARPS * 16 * M, column = warp / ROW_WARPS * 8 * N;
    float total[M][N][4] = {};
    for (int s = 0; s < N_STAGES - 1; ++s) {
        if (s < STEPS) {
            fetch(s);
        } else {
            cp_async_commit_group();
        }
    }
    for (int s = 0; s < STEPS; ++s) {
        cp_async_wait_group<N_STAGES - 2>();
        __syncthreads();  // the step is visible, and the stage that is refilled below was read
        if (s + N_STAGES - 1 < STEPS) {
            fetch(s + N_STAGES - 1);
        } else {
            cp_async_commit_group();
        }
        const float* x = tiles + s % N_STAGES * TILE_ROWS * PITCH + (row + g) * PITCH + t;
        const float* w = tiles + s % N_STAGES * TILE_ROWS * PITCH + (ROWS + column + g) * PITCH + t;
        UNROLL for (int k = 0; k < STEP; k += 8) {
            u32 high[M][4], low[M][4];
            UNROLL for (int m = 0; m < M; ++m)
                UNROLL for (int i = 0; i < 4; ++i)
                    split(x[(16 * m + i % 2 * 8) * PITCH + i / 2 * 4 + k], high[m][i], low[m][i]);
            UNROLL for (int n = 0; n < N; ++n) {
                u32 b_high[2], b_low[2];
                UNROLL for (int i = 0; i < 2; ++i) split(w[n * 8 * PITCH + 4 * i + k], b_high[i], b_low[i]);
                UNROLL for (int m = 0; m < M; ++m) {
                    mma_m16n8k8_tf32(total[m][n], low[m], b_high);
                    mma_m16n8k8_tf32(total[m][n], high[m], b_low);
                    mma_m16n8k8_tf32(total[m][n], high[m], b_high);
                }
            }
        }
    }
    UNROLL for (int m = 0; m < M; ++m)
        UNROLL for (int n = 0; n < N; ++n)
            UNROLL for (int i = 0; i < 4; ++i) {
                const int r = row_0 + row + 16 * m + g + i / 2 * 8, e = expert_0 + column + n * 8 + 2 * t + i % 2;
                if (r < n_rows && e < EXPERTS) out[(size_t)r * EXPERTS + e] = total[m][n][i];
            }
}

extern "C" __global__ void __launch_bounds__(256)
logits(const float* exact, const float* weights, const int* row_counts, int first_row, float* out) {
    logits_of<32, STAGES, 1>(exact, weights, row_counts, first_row, out);
}

extern "C" __global__ void __launch_bounds__(256, 1)
logits_many(const float* exact, const float* weights, const int* row_counts, int first_row, float* out) {
    logits_of<128, MANY_STAGES, 2>(exact, weights, row_counts, first_row, out);
}

extern "C" __global__ void __launch_bounds__(256)
topk(const float* logits, const float* shared_logits, const int* row_counts, int first_row, int n_here, int* experts,
     float* factors, int* count, const float* table, float scale) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= min(n_here, row_counts[0] - first_row)) return;
    int expert;
    float share;
    choose_topk(logits + (size_t)row * EXPERTS, lane, table, scale, expert, share);
    write_choice(expert, share, shared_logits + row, lane, experts + row * N_USED, factors + row * SLOTS);
    if (lane < N_USED) atomicAdd(count + expert, 1);
}

// Number of items for `n` pairs, and pairs of each item.
struct ItemSplit {
    int items, pairs_per_item;
    __device__ ItemSplit(int n) {
        items = (n + PAIRS - 1) / PAIRS;
        pairs_per_item = items ? ((n + items - 1) / items + 7) / 8 * 8 : 8;
    }
};

extern "C" __global__ void __launch_bounds__(256, 1)
expert_items(const int* experts, const int* count, const int* row_counts, int first_row, int n_here, int* item_expert,
             int* item_pairs, int* n_items) {
    __shared__ int own_first;
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int expert = blockIdx.x, n_rows = max(min(n_here, row_counts[0] - first_row), 0);
    const bool is_shared = expert == EXPERTS;
    const ItemSplit shared(N_SHARED * n_rows), own(is_shared ? N_SHARED * n_rows : count[expert]);
    int first = is_shared ? 0 : shared.items, before = shared.items;
    for (int start = 0; start < EXPERTS; start += 256) {
        const int e = start + threadIdx.x;
        int all;
        const int at = before + exclusive_sum(e < EXPERTS ? ItemSplit(count[e]).items : 0, all);
        if (e == expert) own_first = at;
        before += all;
    }
    __syncthreads();  // `own_first` is stored
    if (is_shared && threadIdx.x == 0) n_items[0] = before, n_items[1] = shared.items;
    if (!is_shared) first = own_first;
    for (int i = threadIdx.x; i < own.items; i += 256) item_expert[first + i] = expert;
    for (int i = threadIdx.x; i < own.items * PAIRS; i += 256) {
        const int in_item = i % PAIRS, index = i / PAIRS * own.pairs_per_item + in_item,
                  n = is_shared ? n_rows : count[expert];
        if (in_item >= own.pairs_per_item || index >= n) {
            item_pairs[first * PAIRS + i] = -1;
        } else if (is_shared) {
            item_pairs[first * PAIRS + i] = index * SLOTS + N_USED;
        }
    }
    if (is_shared) return;
    int index = 0;
    constexpr int EACH = 16;
    for (int start = 0; start < n_rows * N_USED; start += EACH * 256) {
        int all;
        u32 mine = 0;
        UNROLL for (int i = 0; i < EACH; i += 4) {
            const int at = start + EACH * threadIdx.x + i;
            if (at + 3 < n_rows * N_USED) {
                const int4 four = *(const int4*)(experts + at);
                mine |= (u32)(four.x == expert) << i | (u32)(four.y == expert) << (i + 1) |
                        (u32)(four.z == expert) << (i + 2) | (u32)(four.w == expert) << (i + 3);
            } else {
                for (int e = 0; e < 4; ++e) mine |= (u32)(at + e < n_rows * N_USED && experts[at + e] == expert) << (i + e);
            }
        }
        int to = index + exclusive_sum(__popc(mine), all);
        index += all;
        for (; mine; mine &= mine - 1, ++to) {
            const int at = start + EACH * threadIdx.x + __ffs(mine) - 1;
            item_pairs[(first + to / own.pairs_per_item) * PAIRS + to % own.pairs_per_item] =
                at / N_USED * SLOTS + at % N_USED;
        }
    }
}
