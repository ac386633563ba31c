// Bias, norm, rotation and attention of one pending row (decode) on Hopper, with the append of its keys and values to the cache:
// partial results of each split (split-KV); `combine` follows. head.cuh and online_softmax.cuh have the formulas; the bits are
// those of `rotate` and `decode_hopper`.
//
// A block handles one split of the context and one KV head. The tiles of the cache do not depend on the row, so they are copied
// while earlier kernels run, if there is room for the block, and beside the row's projections else: no load waits for another
// one but the tiles for the position. Warps for heads norm and rotate the queries, one each if there are few, so that all heads
// share the code of one: this kernel's code is seldom in the instruction caches when it starts. The block that has the end of
// the context also makes the row's key and value, stores them in the cache, and writes them into its last tiles in shared
// memory.
//
// Grid KV_HEADS * MAX_SPLITS, block ROW_THREADS: the warpgroup of consumers, HEAD_WARPS warps for heads, the producer warp.
// Shared memory: mainloop_sm90.cuh, plus HEAD_DIM floats a warp for heads and 4 * HEAD_DIM bytes (static).
// Macros: those of mainloop_sm90.cuh, TILE_Q 64; those of head.cuh, TO_HALF 1; MAX_SPLITS, capacity of splits of a row;
// QUERY_STRIDE, elements from one query head to the next in the projection.
// Bytes: 4 * KV_HEADS * HEAD_DIM for each position, and 4 * HEAD_DIM for each query and split.
#define TREE_MASK 0
#define GATED 0
#define TO_HALF 1
#include "../gpu/include/pdl.cuh"
#include "../rope/head.cuh"
#include "mainloop_sm90.cuh"
#include "split_kv.cuh"
#include "store_partial.cuh"

#ifndef QUERY_STRIDE
#error "QUERY_STRIDE must be defined"
#endif
static_assert(WARPGROUPS == 1, "a row has at most 64 queries for a KV head");

// Key and value of the row, in shared memory, as uint4. They are written into the tiles of the last positions.
struct PendingRow {
    const uint4 (&lines)[2][LINES];
    int position;

    __device__ __forceinline__ void write(u32 tile, int which) const {
        if (threadIdx.x < LINES)
            st_shared_16(tile + swizzled<TILE_KV>(position % TILE_KV, threadIdx.x), lines[which][threadIdx.x]);
    }
    __device__ __forceinline__ void complete_keys(u32 tile, int i) const {
        if (i != position / TILE_KV) return;
        write(tile, 0);
        fence_async_proxy();  // wgmma reads them through the async proxy
        warpgroup_sync();  // the key is stored
    }
    __device__ __forceinline__ void complete_values(u32 tile, int i) const {
        if (i != position / TILE_KV) return;
        write(tile, 1);
        clear_values(tile, position % TILE_KV + 1);
    }
};

// The row's position, the number of its splits, and the first pages of its sequence, in shared memory.
struct Row {
    int position, n_splits, first_pages[32];
    const int* pages;

    // Row of the cache of a position.
    __device__ __forceinline__ int at(int position) const {
        const int page = position / PAGE;
        return (page < 32 ? first_pages[page] : __ldg(pages + page)) * PAGE + position % PAGE;
    }
};

// What the row is made of.
struct Projections {
    const float *query, *key, *value, *bias;

    // Head `h` of those of KV head `head`: its queries, then its key and its value.
    __device__ __forceinline__ const float4* of(int head, int h) const {
        if (h < GROUP_SIZE) return (const float4*)(query + (size_t)(head * GROUP_SIZE + h) * QUERY_STRIDE);
        return (const float4*)((h == GROUP_SIZE ? key : value) + head * HEAD_DIM);
    }
    // Its bias, of those of all query, key and value heads.
    __device__ __forceinline__ const float* bias_of(int head, int h) const {
        const int before = h < GROUP_SIZE ? head * GROUP_SIZE + h : KV_HEADS * h + head;
        return bias + before * HEAD_DIM;
    }
};

constexpr int HEAD_WARPS = 11, ROW_THREADS = 128 + 32 * (HEAD_WARPS + 1);
enum { HEADS_READY = 2 };  // named barrier of the consumers and the warps for heads

extern "C" __global__ void __launch_bounds__(ROW_THREADS, 1)
decode_row_hopper(const float* query, const float* key, const float* value, const float* q_norm, const float* k_norm,
                  const float* cosines, const float* sines, float eps, const __grid_constant__ TensorMap k_map,
                  const __grid_constant__ TensorMap v_map, unsigned short* k, unsigned short* v, const int* counts,
                  const int* length, const int* pages, int max_pages, float* partial, float* stats, const float* bias) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES];
    __shared__ float4 scratch[HEAD_WARPS][VECTORS];
    __shared__ __align__(16) uint2 pending[2][VECTORS];
    __shared__ Row row;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, split = blockIdx.x / KV_HEADS, head = blockIdx.x % KV_HEADS;
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, full = smem_address(barriers);
    Pipeline pipeline = {query_tile + QUERY_TILE_BYTES, full, full + 8 * STAGES, 0, 0};
    const auto range = [&] {
        const int tiles = split_steps(row.position) * (STEP / TILE_KV);
        return KvRange{pages, head, split * tiles, min((split + 1) * tiles, row.position / TILE_KV + 1), row.position,
                       row.position + 1};
    };
    if (warp < 4) {  // the consumers
        setmaxnreg_inc<240>();
        wait_on_dependent_grids();
        __syncthreads();  // `row` and the pipeline's barriers are there
        if (split >= row.n_splits) return;
        const KvRange kv = range();
        const Mask mask = {kv.committed, kv.committed, 0, nullptr, nullptr};
        named_barrier_sync<HEADS_READY, 128 + 32 * HEAD_WARPS>();
        Softmax acc;
        mainloop(pipeline, kv, mask, query_tile, acc, PendingRow{(const uint4(&)[2][LINES])pending, kv.committed});
        store_partial({0, 0, GROUP_SIZE, head}, split, true, acc, partial, stats);
        return;
    }
    setmaxnreg_dec<80>();
    if (warp == 4 + HEAD_WARPS) {  // the producer
        row.first_pages[lane] = lane < max_pages ? pages[lane] : 0;
        if (lane == 0) {
            prefetch_map(k_map), prefetch_map(v_map);
            init_pipeline(pipeline);
            const int position = length[0];
            row.position = position, row.n_splits = counts[0] > 0 ? n_splits_of(position) : 0, row.pages = pages;
        }
        __syncthreads();  // `row` and the pipeline's barriers are there
        if (lane > 0 || split >= row.n_splits) return;
        const KvRange kv = range();
        for (int i = kv.begin; i <= kv.end; ++i) {
            if (i < kv.end) copy_rows(pipeline, k_map, head, row.at(i * TILE_KV));
            if (i > kv.begin) copy_rows(pipeline, v_map, head, row.at((i - 1) * TILE_KV));
        }
        return;
    }
    const int first = warp - 4;  // head
    const Gains gains(first < GROUP_SIZE ? q_norm : k_norm, lane);
    const Projections projections = {query, key, value, bias};
    const Bias first_bias(projections.bias_of(head, min(first, GROUP_SIZE + 1)), lane);
    float4 x[VECTORS_PER_LANE];
    wait_on_dependent_grids();
    load_vectors(x, projections.of(head, min(first, GROUP_SIZE + 1)), lane);
    const LaneAngles angles(cosines, sines, true, lane);
    for (int i = threadIdx.x - 128; i < (64 - GROUP_SIZE) * LINES; i += 32 * HEAD_WARPS)  // queries that do not exist
        st_shared_16(query_tile + swizzled<64>(GROUP_SIZE + i / LINES, i % LINES), make_uint4(0, 0, 0, 0));
    __syncthreads();  // `row` and the pipeline's barriers are there
    if (split >= row.n_splits) return;
    u8* const queries = memory + (query_tile - smem_address(memory));
    const int n_heads = split == row.n_splits - 1 ? GROUP_SIZE + 2 : GROUP_SIZE;
#pragma unroll 1
    for (int h = first; h < n_heads; h += HEAD_WARPS) {
        if (h != first) load_vectors(x, projections.of(head, h), lane);
        add_bias(x, h == first ? first_bias : Bias(projections.bias_of(head, h), lane), lane);
        if (h <= GROUP_SIZE)
            norm_and_rotate(x, (h < GROUP_SIZE) == (first < GROUP_SIZE) ? gains : Gains(h < GROUP_SIZE ? q_norm : k_norm, lane),
                            angles, eps, scratch[first], lane);
        u16* const cache = h == GROUP_SIZE ? k : v;
        UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
            const int vector = lane + 32 * i;
            if (vector >= VECTORS) continue;
            const uint2 halves = half4_saturated(x[i].x, x[i].y, x[i].z, x[i].w);
            if (h < GROUP_SIZE) {
                *(uint2*)(queries + swizzled<64>(h, vector / 2) + vector % 2 * 8) = halves;
            } else {
                pending[h - GROUP_SIZE][vector] = halves;
                ((uint2*)(cache + ((size_t)row.at(row.position) * KV_HEADS + head) * HEAD_DIM))[vector] = halves;
            }
        }
        __syncwarp();  // the scratch is no longer read
    }
    fence_async_proxy();  // wgmma reads the queries through the async proxy
    named_barrier_sync<HEADS_READY, 128 + 32 * HEAD_WARPS>();
    launch_dependent_grids();
}
