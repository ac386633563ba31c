// Attention of pending rows (decode) over a q8_0 cache on Hopper: partial results of each split (split-KV); `combine` follows.
// The formula is that of online_softmax.cuh with the values of q8_0.cuh and the base scores of base_score.cuh. Each half of a
// split is reckoned alone, and their sums are added.
//
// Two warpgroups multiply (wgmma_q8_0.cuh). With RINGS 2, each takes half of the positions, for all queries; with RINGS 1, each
// takes half of the queries. One warp for each ring copies tiles of bytes with TMA, in the order K0 V0 K1 V1 ... A warp
// multiplies 16 keys of a tile by all queries, and all weights by EACH blocks of 32 elements of the values. Warps of a
// warpgroup meet twice for each tile: before and after they store weights.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block 384,
// shared memory Layout::BYTES + RINGS * STAGES * RAW_BYTES + 1024. Macros: HEAD_DIM, a multiple of 32 up to 256; GROUP_SIZE,
// query heads that share a KV head; KV_HEADS; TILE_KV, 64; TILE_Q, queries of an item; RINGS; STAGES, tiles in a ring;
// MAX_SPLITS, capacity of splits of a row.
// Bytes: 2 * KV_HEADS * (HEAD_DIM + 16) for each position, and 4 * HEAD_DIM for each query and split.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "base_score.cuh"
#include "decode_scheduler.cuh"
#include "partial_layout.cuh"
#include "wgmma_q8_0.cuh"

#ifndef STAGES
#error "STAGES must be defined"
#endif

constexpr int CONSUMERS = 128 * WARPGROUPS, THREADS = CONSUMERS + 128;
// Registers of a thread. With 128 on average a block of `combine` fits beside this one and begins early.
constexpr int BOUND = N > 32 ? THREADS : 512, CONSUMER_REGISTERS = N > 32 ? 232 : 176, PRODUCER_REGISTERS = N > 32 ? 40 : 32;
constexpr int RAW_BYTES = TILE_KV * HEAD_BYTES;

// Shared memory before the rings, aligned to 1024 bytes: queries of each query group (blocks of 64 columns, N rows), weights of
// each warpgroup (N rows of 64), and sums of half a split for each query group (OUTPUTS, FRAGMENTS, 128 threads, 16 bytes).
struct Layout {
    static constexpr int QUERY_BYTES = (HEAD_DIM + 63) / 64 * N * 128, WEIGHT_BYTES = N * 128;
    static constexpr int SUM_BYTES = OUTPUTS * FRAGMENTS * 2048;
    static constexpr int QUERIES = 0, WEIGHTS = QUERY_GROUPS * QUERY_BYTES, SUMS = WEIGHTS + WARPGROUPS * WEIGHT_BYTES;
    static constexpr int BYTES = SUMS + QUERY_GROUPS * SUM_BYTES;
};

using Pipeline = PipelineState<STAGES, RAW_BYTES>;

// What the warps of a warpgroup exchange.
struct Shared {
    Item item;
    int limits[MAX_ROWS];
    u64 above[MAX_ROWS];
    float of_warps[4][N];  // largest scores of a tile, or sums of weights
};

// Base score and sum of weights of each query, of both halves of a split.
using Totals = float2[2][N];

// The tiles of half a split, maybe none. Their border depends on the size of the split alone.
struct Half {
    int begin, end;

    __device__ __forceinline__ Half(const Item& item, int half) {
        const int middle = min(item.kv.begin + split_steps(item.kv.committed + item.own) / 2, item.kv.end);
        begin = half ? middle : item.kv.begin, end = half ? item.kv.end : middle;
    }
};

// Barrier of the threads of both warpgroups. Those of one use the barriers before.
__device__ __forceinline__ void consumers_sync() { named_barrier_sync<CONSUMERS>(3); }

// Copy the tiles of all items of the block that belong to a ring, by one thread. Tiles with accepted positions only need not
// wait for earlier kernels.
__device__ __forceinline__ void copy_items(Pipeline pipeline, int ring, const TensorMap& k, const TensorMap& v,
                                           const Batch& batch, const int* pages, int max_pages) {
    Item item;
    item.sequence = item.before = 0;
    bool waited = false;
    for (int n = blockIdx.x; find(n, item, batch, pages, max_pages); n += gridDim.x) {
        const int begin = Half(item, ring).begin, end = Half(item, RINGS == 2 ? ring : 1).end;
#pragma unroll 1
        for (int i = begin; i < end; ++i) {
            const int position = i * TILE_KV;
            if (!waited && position + TILE_KV > item.kv.committed) {
                wait_on_dependent_grids();
                waited = true;
            }
            const int row = __ldg(item.kv.pages + position / PAGE) * PAGE + position % PAGE;
            UNROLL for (int values = 0; values < 2; ++values) {
                mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
                mbarrier_arrive_expect_tx(pipeline.full_barrier(), RAW_BYTES);
                tma_load_2d(pipeline.tile(), values ? v : k, item.kv.head * (HEAD_BYTES / 4), row, pipeline.full_barrier());
                pipeline.next();
            }
        }
    }
    if (!waited) wait_on_dependent_grids();
}

// All lanes of this warp have read the tile.
__device__ __forceinline__ void release(Pipeline& pipeline) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(pipeline.empty_barrier());
    pipeline.next();
}

// Release the tiles of an item without reading them; for a warpgroup without queries.
__device__ __forceinline__ void skip(Pipeline& pipeline, const KvRange& kv) {
    for (int n = 2 * (kv.end - kv.begin); n; --n) {
        mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
        release(pipeline);
    }
}

// State of the softmax of a lane for queries 8 * n + 2 * t + e; sums of the weights of the lane's keys.
struct Softmax {
    BaseScore base[FRAGMENTS][2];
    float sum[FRAGMENTS][2];
};

__device__ __forceinline__ void apply_mask(float (&s)[FRAGMENTS][4], int position, int first, const Shared& shared) {
    const int lane = threadIdx.x % 32, committed = shared.item.kv.committed;
    asm volatile("" : "+r"(first));  // or the addresses of all masks stay in registers, too many
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int row = min((first + 8 * n + lane % 4 * 2 + e) / GROUP_SIZE, MAX_ROWS - 1), limit = shared.limits[row];
            const u64 bits = shared.above[row];
            UNROLL for (int h = 0; h < 2; ++h) {
                const int p = position + threadIdx.x % 128 / 32 * 16 + 8 * h + lane / 4, own = p - committed;
                const bool visible = p < limit || (own >= 0 && own < PENDING && bits >> own & 1);
                if (!visible) s[n][2 * h + e] = MINUS_INFINITY;
            }
        }
}

// Change base scores to the largest scores of a tile where they must, and rescale the sums of earlier tiles.
__device__ __forceinline__ void change_base(const float (&s)[FRAGMENTS][4], Softmax& softmax,
                                            float (&acc)[OUTPUTS][FRAGMENTS][4], Shared& shared) {
    const int lane = threadIdx.x % 32, t = lane % 4, warp = threadIdx.x % 128 / 32;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        float2 most = make_float2(fmaxf(s[n][0], s[n][2]), fmaxf(s[n][1], s[n][3]));
        UNROLL for (int by = 4; by < 32; by *= 2) {
            most.x = fmaxf(most.x, __shfl_xor_sync(~0u, most.x, by));
            most.y = fmaxf(most.y, __shfl_xor_sync(~0u, most.y, by));
        }
        if (lane < 4) *(float2*)&shared.of_warps[warp][8 * n + 2 * t] = most;
    }
    warpgroup_sync();  // the scores of all warps are stored
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        float2 most = *(const float2*)&shared.of_warps[0][8 * n + 2 * t];
        UNROLL for (int i = 1; i < 4; ++i) {
            const float2 other = *(const float2*)&shared.of_warps[i][8 * n + 2 * t];
            most.x = fmaxf(most.x, other.x), most.y = fmaxf(most.y, other.y);
        }
        UNROLL for (int e = 0; e < 2; ++e) {
            const float factor = softmax.base[n][e].change(e ? most.y : most.x);
            softmax.sum[n][e] = __fmul_rn(softmax.sum[n][e], factor);
            UNROLL for (int i = 0; i < OUTPUTS; ++i)
                UNROLL for (int h = 0; h < 2; ++h) acc[i][n][2 * h + e] = __fmul_rn(acc[i][n][2 * h + e], factor);
        }
    }
}

// Turn the scores of a tile into weights in shared memory.
__device__ __forceinline__ void soften(float (&s)[FRAGMENTS][4], Softmax& softmax, float (&acc)[OUTPUTS][FRAGMENTS][4],
                                       Shared& shared, u8* weights) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, warp = threadIdx.x % 128 / 32;
    bool changes = false;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) changes |= softmax.base[n][e].must_change(fmaxf(s[n][e], s[n][2 + e]));
    // beside, weights of the previous tile are no longer read
    if (!named_barrier_all<128>((int)threadIdx.x / 128 + 1, !changes)) change_base(s, softmax, acc, shared);
    UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
        UNROLL for (int e = 0; e < 2; ++e) {
            const float shift = softmax.base[n][e].shift();
            UNROLL for (int h = 0; h < 2; ++h) s[n][2 * h + e] = BaseScore::weight(s[n][2 * h + e], shift);
            softmax.sum[n][e] = __fadd_rn(softmax.sum[n][e], __fadd_rn(s[n][e], s[n][2 + e]));
        }
        UNROLL for (int h = 0; h < 2; ++h)
            *(u32*)(weights + n * 1024 + swizzled<N>(g, 2 * warp + h) + 4 * t) =
                transposed_8x8(pack_half2(s[n][2 * h], s[n][2 * h + 1]));
    }
    fence_async_proxy();  // wgmma reads the weights through the async proxy
    warpgroup_sync();     // the weights of all warps are stored
}

// Store the base scores and the sums of weights of half a split.
__device__ __forceinline__ void store_totals(const Softmax& softmax, Shared& shared, float2* totals) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32, x = threadIdx.x % 128;
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int own = 8 * n + lane % 4 * 2 + e;
            float sum = softmax.sum[n][e];
            UNROLL for (int by = 4; by < 32; by *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, by));
            if (lane < 4) shared.of_warps[warp][own] = sum;
            if (x < 4) totals[own].x = softmax.base[n][e].stored();
        }
    warpgroup_sync();  // the sums of all warps are stored
    if (x >= N) return;
    float sum = shared.of_warps[0][x];
    UNROLL for (int i = 1; i < 4; ++i) sum = __fadd_rn(sum, shared.of_warps[i][x]);
    totals[x].y = sum;
}

// Fragments n of the sums of half a split, to or from shared memory.
__device__ __forceinline__ void store_sums(const float (&acc)[OUTPUTS][FRAGMENTS][4], int n, float4* sums) {
    UNROLL for (int i = 0; i < OUTPUTS; ++i)
        sums[(i * FRAGMENTS + n) * 128] = make_float4(acc[i][n][0], acc[i][n][1], acc[i][n][2], acc[i][n][3]);
}

// Add both halves of fragments n of the sums and store the results for `combine`. `acc` has half `own`, `sums` the other one.
__device__ __forceinline__ void store(const Shared& shared, const Totals& totals, int first_query,
                                      const float (&acc)[OUTPUTS][FRAGMENTS][4], int n, int own, const float4* sums,
                                      float* partial, float* stats) {
    const int lane = threadIdx.x % 32, t = lane % 4, block = threadIdx.x % 128 / 32 * EACH;
    const Item& item = shared.item;
    float4 other[OUTPUTS];
    UNROLL for (int i = 0; i < OUTPUTS; ++i) other[i] = sums[(i * FRAGMENTS + n) * 128];
    UNROLL for (int e = 0; e < 2; ++e) {
        const int of_group = 8 * n + 2 * t + e, x = first_query + of_group, row = x / GROUP_SIZE;
        if (x >= item.queries.n || item.split >= n_splits_of(item.kv.committed + item.own + row)) continue;
        const size_t at = partial_at(item.queries.row + row, item.queries.head, item.split);
        const float2 a = totals[0][of_group], b = totals[1][of_group];
        const float base = fmaxf(a.x, b.x), scale = score_scale();
        // 1, too, where neither half has a position
        const float of_a = a.x == base ? 1.0f : exp2_approx(__fsub_rn(__fmul_rn(a.x, scale), __fmul_rn(base, scale)));
        const float of_b = b.x == base ? 1.0f : exp2_approx(__fsub_rn(__fmul_rn(b.x, scale), __fmul_rn(base, scale)));
        const float of_own = own ? of_b : of_a, of_other = own ? of_a : of_b;
        const auto sum = [&](float x, float y) { return __fadd_rn(__fmul_rn(x, of_own), __fmul_rn(y, of_other)); };
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int d = 32 * (block + i) + lane / 4 * 4;
            if (d >= HEAD_DIM) continue;
            const float(&low)[4] = acc[2 * i][n], (&high)[4] = acc[2 * i + 1][n];
            const float4 &low_other = other[2 * i], &high_other = other[2 * i + 1];
            *(float4*)(partial + at * (GROUP_SIZE * HEAD_DIM) + (d / 8 * GROUP_SIZE + x % GROUP_SIZE) * 8 + d % 8) =
                make_float4(sum(low[e], e ? low_other.y : low_other.x), sum(low[2 + e], e ? low_other.w : low_other.z),
                            sum(high[e], e ? high_other.y : high_other.x), sum(high[2 + e], e ? high_other.w : high_other.z));
        }
        if (threadIdx.x % 128 < 4)
            *(float2*)(stats + 2 * (at * GROUP_SIZE + x % GROUP_SIZE)) =
                make_float2(base, __fadd_rn(__fmul_rn(a.y, of_a), __fmul_rn(b.y, of_b)));
    }
}

extern "C" __global__ void __launch_bounds__(BOUND, 1)
decode_q8_0_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                   const int* counts, const int* first, const int* parent, const int* depth, const int* length,
                   const int* pages, int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[RINGS][2][STAGES];
    __shared__ Batch batch;
    __shared__ Shared of_groups[WARPGROUPS];
    __shared__ Totals of_queries[QUERY_GROUPS];
    launch_dependent_grids();
    u8* const rest = memory + (1024 - smem_address(memory) % 1024) % 1024;
    u8* const rings = rest + Layout::BYTES;
    const auto pipeline_of = [&](int ring) {
        const u32 full = smem_address(barriers[ring][0]);
        return Pipeline{smem_address(rings) + ring * STAGES * RAW_BYTES, full, full + 8 * STAGES, 0, 0};
    };
    if (threadIdx.x == CONSUMERS) prefetch_map(k), prefetch_map(v);
    if (threadIdx.x < RINGS * STAGES) {
        const int ring = threadIdx.x / STAGES, i = threadIdx.x % STAGES;
        mbarrier_init(smem_address(&barriers[ring][0][i]), 1);
        mbarrier_init(smem_address(&barriers[ring][1][i]), 4 * QUERY_GROUPS);
    }
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    __syncthreads();  // barriers and batch are ready
    if (threadIdx.x >= CONSUMERS) {
        setmaxnreg_dec<PRODUCER_REGISTERS>();
        const int producer = threadIdx.x - CONSUMERS;
        if (producer % 32 == 0 && producer / 32 < RINGS)
            copy_items(pipeline_of(producer / 32), producer / 32, k, v, batch, pages, max_pages);
    } else {
        setmaxnreg_inc<CONSUMER_REGISTERS>();
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128, ring = RINGS == 2 ? group : 0;
        const int first_query = RINGS == 2 ? 0 : group * N;
        u8* const weights = rest + Layout::WEIGHTS + group * Layout::WEIGHT_BYTES;
        const u32 queries = smem_address(rest + Layout::QUERIES + (RINGS == 2 ? 0 : group) * Layout::QUERY_BYTES);
        float4* const sums = (float4*)(rest + Layout::SUMS + (RINGS == 2 ? 0 : group) * Layout::SUM_BYTES) + thread;
        Pipeline pipeline = pipeline_of(ring);
        Shared& shared = of_groups[group];
        Totals& totals = of_queries[RINGS == 2 ? 0 : group];
        Item& item = shared.item;
        if (thread == 0) item.sequence = item.before = 0;
        bool waited = false;
        for (int n = blockIdx.x;; n += gridDim.x) {
            if (RINGS == 2) consumers_sync();  // neither warpgroup reads the previous item and its sums
            else warpgroup_sync();
            if (thread == 0) find(n, item, batch, pages, max_pages);
            warpgroup_sync();  // the item is stored
            if (item.queries.n == 0) break;
            if (first_query >= item.queries.n) {
                skip(pipeline, item.kv);
                continue;
            }
            if (thread < item.rows) read_mask(item, thread, batch, shared.limits, shared.above);
            if (!waited) wait_on_dependent_grids();
            waited = true;
            if (RINGS == 2) {
                store_queries(queries, q, item.queries, 0, threadIdx.x, CONSUMERS);
                consumers_sync();  // queries and masks are stored
            } else {
                store_queries(queries, q, item.queries, first_query, thread, 128);
                warpgroup_sync();
            }
#pragma unroll 1
            for (int half = ring; half < (RINGS == 2 ? ring + 1 : 2); ++half) {
                const Half tiles(item, half);
                Softmax softmax;
                float acc[OUTPUTS][FRAGMENTS][4], s[FRAGMENTS][4];
                clear(acc);
                UNROLL for (int i = 0; i < FRAGMENTS; ++i)
                    UNROLL for (int e = 0; e < 2; ++e) softmax.base[i][e].value = BaseScore::NONE, softmax.sum[i][e] = 0.0f;
#pragma unroll 1
                for (int tile = tiles.begin; tile < tiles.end; ++tile) {
                    const int position = tile * TILE_KV;
                    mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
                    multiply_keys(s, rings + (pipeline.tile() - smem_address(rings)), queries);
                    release(pipeline);
                    if (position + TILE_KV > item.kv.committed) apply_mask(s, position, first_query, shared);
                    soften(s, softmax, acc, shared, weights);
                    mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
                    u8* const values = rings + (pipeline.tile() - smem_address(rings));
                    if (position + TILE_KV > item.kv.written) clear_values(values, item.kv.written - position);
                    multiply_values(acc, values, smem_address(weights));
                    release(pipeline);
                }
                store_totals(softmax, shared, totals[half]);
                if (RINGS == 2) {
                    // each warpgroup gives half of its sums to the other one
                    UNROLL for (int i = 0; i < FRAGMENTS; ++i)
                        if (i % 2 != half) store_sums(acc, i, sums);
                    consumers_sync();  // the sums of both are stored
                    UNROLL for (int i = 0; i < FRAGMENTS; ++i)
                        if (i % 2 == half) store(shared, totals, first_query, acc, i, half, sums, partial, stats);
                } else if (half == 0) {
                    UNROLL for (int i = 0; i < FRAGMENTS; ++i) store_sums(acc, i, sums);
                } else {
                    warpgroup_sync();  // the totals are stored
                    UNROLL for (int i = 0; i < FRAGMENTS; ++i)
                        store(shared, totals, first_query, acc, i, half, sums, partial, stats);
                }
            }
        }
        if (!waited) wait_on_dependent_grids();
    }
}
