// Attention of pending rows (decode) over a quantized cache on Hopper: partial results of each split (split-KV); `combine`
// follows. The formula is that of online_softmax.cuh with the values of quantized.cuh and the base scores of base_score.cuh.
// Each half of a split is reckoned alone, and their sums are added.
//
// Two warpgroups multiply (wgmma_quantized.cuh). With RINGS 2, each takes half of the positions. With RINGS 1, one multiplies keys and
// the other one values, so that many queries fit in registers; weights pass through two places in shared memory. One warp for
// each ring copies tiles of bytes with TMA, in the order K0 V0 K1 V1 ... A warp multiplies 16 keys of a tile by all queries,
// and all weights by EACH blocks of 32 elements of the values.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block 384,
// shared memory Layout::BYTES + RINGS * STAGES * RAW_BYTES + 1024. Macros: HEAD_DIM, a multiple of 32 up to 256; GROUP_SIZE,
// query heads that share a KV head; KV_HEADS; KEY_BITS, VALUE_BITS; TILE_KV, 64; TILE_Q, queries of an item; RINGS; STAGES,
// tiles in a ring; MAX_SPLITS, capacity of splits of a row.
// Bytes: KV_HEADS * (Keys::HEAD + Values::HEAD) for each position, and 4 * HEAD_DIM for each query and split.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "partial_layout.cuh"
#include "softmax_quantized.cuh"

#if !defined(STAGES) || !defined(RINGS)
#error "STAGES and RINGS must be defined"
#endif
static_assert(RINGS == 2 ? TILE_Q <= 48 : RINGS == 1, "one or two rings, two for up to 48 queries");

constexpr int CONSUMERS = 256, THREADS = CONSUMERS + 128;
constexpr int RAW_BYTES = TILE_KV * LARGER_HEAD;

// Registers of a thread of each warpgroup; BOUND, threads for which the compiler shares them out. With 128 on average, enough for
// few queries, a block of `combine` fits beside this one and begins early.
struct Registers {
    static constexpr bool FEW = RINGS == 2 && TILE_Q <= 32;
    static constexpr int BOUND = FEW ? 512 : THREADS;
    static constexpr int FIRST = FEW ? 176 : RINGS == 2 ? 232 : 224, SECOND = FEW ? 176 : RINGS == 2 ? 232 : 248;
    static constexpr int PRODUCER = FEW ? 32 : 32;
};

// Shared memory before the rings, aligned to 1024 bytes: queries (blocks of 64 columns, TILE_Q rows), two places of weights
// (TILE_Q rows of 64), and sums of half a split (OUTPUTS, FRAGMENTS, 128 threads, 16 bytes).
struct Layout {
    static constexpr int WEIGHT_BYTES = TILE_Q * 128, SUM_BYTES = OUTPUTS * FRAGMENTS * 2048;
    static constexpr int QUERIES = 0, WEIGHTS = (HEAD_DIM + 63) / 64 * TILE_Q * 128, SUMS = WEIGHTS + 2 * WEIGHT_BYTES;
    static constexpr int BYTES = SUMS + SUM_BYTES;
};

using Pipeline = PipelineState<STAGES, RAW_BYTES>;
using WeightPipeline = PipelineState<2, Layout::WEIGHT_BYTES>;

// What comes with the weights of a tile.
struct Rescale {
    bool changes;
    alignas(8) float factors[TILE_Q];  // of all sums of earlier tiles, if there are changes
};

// Base score and sum of weights of each query, of both halves of a split.
using Totals = float2[2][TILE_Q];

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
                const int head_bytes = values ? Values::HEAD : Keys::HEAD;
                mbarrier_arrive_expect_tx(pipeline.full_barrier(), TILE_KV * head_bytes);
                tma_load_2d(pipeline.tile(), values ? v : k, item.kv.head * (head_bytes / 4), row, pipeline.full_barrier());
                pipeline.next();
            }
        }
    }
    if (!waited) wait_on_dependent_grids();
}

// All lanes of this warp have read a stage.
template <class Stages>
__device__ __forceinline__ void release(Stages& stages) {
    __syncwarp();
    if (EVERY_LANE_ARRIVES || threadIdx.x % 32 == 0) mbarrier_arrive(stages.empty_barrier());
    stages.next();
}

// Store fragments n of the sums of half a split.
__device__ __forceinline__ void store_sums(const float (&acc)[OUTPUTS][FRAGMENTS][4], int n, float4* sums) {
    UNROLL for (int i = 0; i < OUTPUTS; ++i)
        sums[(i * FRAGMENTS + n) * 128] = make_float4(acc[i][n][0], acc[i][n][1], acc[i][n][2], acc[i][n][3]);
}

// Add both halves of fragments n of the sums and store the results for `combine`. `acc` has half `own`, `sums` the other one.
__device__ __forceinline__ void store(const Item& item, const Totals& totals,
                                      const float (&acc)[OUTPUTS][FRAGMENTS][4], int n, int own, const float4* sums,
                                      float* partial, float* stats) {
    int first = threadIdx.x % 4 * 2;
    asm volatile("" : "+r"(first));  // or the addresses of all queries stay in registers, too many
    float4 other[OUTPUTS];
    UNROLL for (int i = 0; i < OUTPUTS; ++i) other[i] = sums[(i * FRAGMENTS + n) * 128];
    UNROLL for (int e = 0; e < 2; ++e) {
        const int x = 8 * n + first + e, row = x / GROUP_SIZE;
        if (x >= item.queries.n || item.split >= n_splits_of(item.kv.committed + item.own + row)) continue;
        const size_t at = partial_at(item.queries.row + row, item.queries.head, item.split);
        const float2 a = totals[0][x], b = totals[1][x];
        const float base = fmaxf(a.x, b.x), scale = score_scale();
        // 1, too, where neither half has a position
        const float of_a = a.x == base ? 1.0f : exp2_approx(__fsub_rn(__fmul_rn(a.x, scale), __fmul_rn(base, scale)));
        const float of_b = b.x == base ? 1.0f : exp2_approx(__fsub_rn(__fmul_rn(b.x, scale), __fmul_rn(base, scale)));
        const float of_own = own ? of_b : of_a, of_other = own ? of_a : of_b;
        const auto sum = [&](float x, float y) { return __fadd_rn(__fmul_rn(x, of_own), __fmul_rn(y, of_other)); };
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int d = first_element(i);
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

// What a consumer needs of its block.
struct Block {
    u8* memory;  // of Layout
    u8* rings;
    const Item* item;
    const Masks* masks;
    OfWarps* of_warps;
    Totals* totals;
    Rescale* rescale;  // of both places of weights
    Pipeline pipeline;
    WeightPipeline weights;
    u32 totals_ready, totals_phase;  // barrier of the totals of an item with one ring, and its phase

    __device__ __forceinline__ u32 queries() const { return smem_address(memory + Layout::QUERIES); }
    __device__ __forceinline__ u8* tile() const { return rings + (pipeline.tile() - smem_address(rings)); }
    __device__ __forceinline__ u8* place(int i) const { return memory + Layout::WEIGHTS + i * Layout::WEIGHT_BYTES; }
    __device__ __forceinline__ float4* sums() const { return (float4*)(memory + Layout::SUMS) + threadIdx.x % 128; }
};

// Scores of the next tile of keys, masked.
__device__ __forceinline__ void score_tile(Block& block, int tile, float (&s)[FRAGMENTS][4]) {
    mbarrier_wait(block.pipeline.full_barrier(), block.pipeline.phase);
    multiply_keys(s, block.tile(), block.queries());
    release(block.pipeline);
    const int position = tile * TILE_KV, committed = block.item->kv.committed;
    if (position + TILE_KV > committed) apply_mask(s, position, committed, *block.masks);
}

// Add the next tile of values, times weights.
__device__ __forceinline__ void add_tile(Block& block, int tile, float (&acc)[OUTPUTS][FRAGMENTS][4], u32 weights) {
    mbarrier_wait(block.pipeline.full_barrier(), block.pipeline.phase);
    const int position = tile * TILE_KV, written = block.item->kv.written;
    if (position + TILE_KV > written) clear_values(block.tile(), written - position);
    multiply_values(acc, block.tile(), weights);
    release(block.pipeline);
}

// Attend to half `half` of a split, and store the results of the split together with the other warpgroup.
__device__ __forceinline__ void attend_half(Block& block, int half, float* partial, float* stats) {
    const Half tiles(*block.item, half);
    Softmax softmax;
    float acc[OUTPUTS][FRAGMENTS][4], s[FRAGMENTS][4];
    u8* const weights = block.place(half);
    clear(acc), softmax.clear();
#pragma unroll 1
    for (int tile = tiles.begin; tile < tiles.end; ++tile) {
        score_tile(block, tile, s);
        if (changes_base(s, softmax)) {
            float factors[FRAGMENTS][2];
            change_base(s, softmax, *block.of_warps, factors);
            UNROLL for (int n = 0; n < FRAGMENTS; ++n) rescale_outputs(acc, n, factors[n][0], factors[n][1]);
        }
        store_weights(s, softmax, weights);
        warpgroup_sync();  // the weights of all warps are stored
        add_tile(block, tile, acc, smem_address(weights));
    }
    store_totals(softmax, *block.of_warps, (*block.totals)[half]);
    // each warpgroup gives half of its sums to the other one
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        if (n % 2 != half) store_sums(acc, n, block.sums());
    consumers_sync();  // the sums of both are stored
    UNROLL for (int n = 0; n < FRAGMENTS; ++n)
        if (n % 2 == half) store(*block.item, *block.totals, acc, n, half, block.sums(), partial, stats);
}

// Turn the keys of a split into weights, for the other warpgroup.
__device__ __forceinline__ void weigh_keys(Block& block) {
    const int t = threadIdx.x % 4;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const Half tiles(*block.item, half);
        Softmax softmax;
        float s[FRAGMENTS][4], factors[FRAGMENTS][2];
        softmax.clear();
#pragma unroll 1
        for (int tile = tiles.begin; tile < tiles.end; ++tile) {
            score_tile(block, tile, s);
            mbarrier_wait(block.pipeline.full_barrier(), block.pipeline.phase);  // or a later tile would seem to be there
            block.pipeline.next();
            const bool changes = changes_base(s, softmax);
            if (changes) change_base(s, softmax, *block.of_warps, factors);
            mbarrier_wait(block.weights.empty_barrier(), block.weights.phase ^ 1);
            Rescale& rescale = block.rescale[block.weights.stage];
            if (threadIdx.x == 0) rescale.changes = changes;
            if (changes && threadIdx.x < 4)
                UNROLL for (int n = 0; n < FRAGMENTS; ++n)
                    *(float2*)&rescale.factors[8 * n + 2 * t] = make_float2(factors[n][0], factors[n][1]);
            store_weights(s, softmax, block.place(block.weights.stage));
            __syncwarp();  // the weights of this warp are stored
            if (EVERY_LANE_ARRIVES || threadIdx.x % 32 == 0) mbarrier_arrive(block.weights.full_barrier());
            block.weights.next();
        }
        store_totals(softmax, *block.of_warps, (*block.totals)[half]);
    }
    __syncwarp();  // the totals of this warp are stored
    if (EVERY_LANE_ARRIVES || threadIdx.x % 32 == 0) mbarrier_arrive(block.totals_ready);
}

// Add the values of a split, times the weights of the other warpgroup, and store the results.
__device__ __forceinline__ void add_values(Block& block, float* partial, float* stats) {
    const int t = threadIdx.x % 4;
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
        const Half tiles(*block.item, half);
        float acc[OUTPUTS][FRAGMENTS][4];
        clear(acc);
#pragma unroll 1
        for (int tile = tiles.begin; tile < tiles.end; ++tile) {
            block.pipeline.next();  // keys, which are there before their weights
            mbarrier_wait(block.weights.full_barrier(), block.weights.phase);
            const Rescale& rescale = block.rescale[block.weights.stage];
            if (rescale.changes) {
                UNROLL for (int n = 0; n < FRAGMENTS; ++n) {
                    const float2 factors = *(const float2*)&rescale.factors[8 * n + 2 * t];
                    rescale_outputs(acc, n, factors.x, factors.y);
                }
            }
            add_tile(block, tile, acc, block.weights.tile());
            release(block.weights);
        }
        if (half == 0) {
            UNROLL for (int n = 0; n < FRAGMENTS; ++n) store_sums(acc, n, block.sums());
            continue;
        }
        mbarrier_wait(block.totals_ready, block.totals_phase);
        block.totals_phase ^= 1;
        UNROLL for (int n = 0; n < FRAGMENTS; ++n)
            store(*block.item, *block.totals, acc, n, half, block.sums(), partial, stats);
    }
}

extern "C" __global__ void __launch_bounds__(Registers::BOUND, 1)
decode_quantized_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                        const int* counts, const int* first, const int* parent, const int* depth, const int* length,
                        const int* pages, int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[RINGS][2][STAGES], weight_barriers[2][2], totals_ready;
    __shared__ Batch batch;
    __shared__ Item items[2];
    __shared__ Masks masks;
    __shared__ OfWarps of_warps[RINGS];
    __shared__ Totals totals;
    __shared__ Rescale rescale[2];
    launch_dependent_grids();
    const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
    Block block;
    block.memory = memory + (1024 - smem_address(memory) % 1024) % 1024, block.rings = block.memory + Layout::BYTES;
    block.item = &items[group % 2], block.masks = &masks, block.of_warps = &of_warps[RINGS == 2 ? group % 2 : 0];
    block.totals = &totals, block.rescale = rescale;
    const auto pipeline_of = [&](int ring) {
        const u32 full = smem_address(barriers[ring][0]);
        return Pipeline{smem_address(block.rings) + ring * STAGES * RAW_BYTES, full, full + 8 * STAGES, 0, 0};
    };
    const u32 weights_full = smem_address(weight_barriers[0]);
    block.weights = {smem_address(block.place(0)), weights_full, weights_full + 16, 0, 0};
    block.totals_ready = smem_address(&totals_ready), block.totals_phase = 0;
    if (threadIdx.x == CONSUMERS) prefetch_map(k), prefetch_map(v);
    if (threadIdx.x < RINGS * STAGES) {
        const int ring = threadIdx.x / STAGES, i = threadIdx.x % STAGES;
        mbarrier_init(smem_address(&barriers[ring][0][i]), 1);
        mbarrier_init(smem_address(&barriers[ring][1][i]), 4 * WARP_ARRIVALS);
    }
    if (threadIdx.x < 4) mbarrier_init(weights_full + 8 * threadIdx.x, 4 * WARP_ARRIVALS);
    if (threadIdx.x == 0) mbarrier_init(block.totals_ready, 4 * WARP_ARRIVALS);
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    __syncthreads();  // barriers and batch are ready
    const auto for_each_item = [&](const auto& work) {
        Item& item = items[group];
        bool waited = false;
        block.pipeline = pipeline_of(RINGS == 2 ? group : 0);
        if (thread == 0) item.sequence = item.before = 0;
        for (int n = blockIdx.x;; n += gridDim.x) {
            consumers_sync();  // neither warpgroup reads the previous item and its sums
            if (thread == 0) find(n, item, batch, pages, max_pages);
            warpgroup_sync();  // the item is stored
            if (item.queries.n == 0) break;
            if (threadIdx.x < item.rows) read_mask(item, threadIdx.x, batch, masks.limits, masks.above);
            if (!waited) wait_on_dependent_grids();
            waited = true;
            store_queries<CONSUMERS>(block.queries(), q, item.queries);
            consumers_sync();  // queries and masks are stored
            work();
        }
        if (!waited) wait_on_dependent_grids();
    };
    if (group == 2) {
        setmaxnreg_dec<Registers::PRODUCER>();
        const int ring = thread / 32;
        if (thread % 32 == 0 && ring < RINGS) copy_items(pipeline_of(ring), ring, k, v, batch, pages, max_pages);
    } else if (group == 0) {
        setmaxnreg_inc<Registers::FIRST>();
        for_each_item([&] {
            if constexpr (RINGS == 2) attend_half(block, 0, partial, stats);
            else weigh_keys(block);
        });
    } else {
        setmaxnreg_inc<Registers::SECOND>();
        for_each_item([&] {
            if constexpr (RINGS == 2) attend_half(block, 1, partial, stats);
            else add_values(block, partial, stats);
        });
    }
}
