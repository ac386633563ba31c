// Attention of pending rows (decode) over a q8_0 cache on Hopper, for more queries than decode_q8_0_warps.cu takes: partial
// results of each split (split-KV); `combine` follows. online_softmax.cuh has the formula, for each part (parts.cuh) of a
// split; a row's bits are those of decode_q8_0_warps.cu.
//
// Blocks take work items in turn, see decode_scheduler.cuh. A warpgroup for each 64 queries multiplies (mainloop_sm90.cuh);
// of the last one, three warps unpack tiles and a thread copies them (unpack_tiles.cuh). Sums of the parts so far are stored in
// `partial`. Grid: any size, one block a multiprocessor is best. Block THREADS, shared memory QUERY_TILE_BYTES + STAGES *
// TILE_BYTES + RAW_STAGES * RAW_BYTES + 1024. Macros: those of unpack_tiles.cuh; MAX_SPLITS, capacity of splits of a row.
// Bytes: 2 * KV_HEADS * (HEAD_DIM + 16) for each position, and 4 * HEAD_DIM for each query and split.
#define TREE_MASK 1
#include "unpack_tiles.cuh"
#include "store_item.cuh"

// Add the sums of a part to those of the parts before it, in the order of partial_layout.cuh. As in store_partial.cuh, a
// thread has four columns of one query. `all`: of each query of the tile.
__device__ __forceinline__ void add_part(const Item& item, bool first, const Softmax& acc, PartSums* all, float* partial,
                                         float* stats) {
    if (threadIdx.x / 32 * 16 >= item.queries.n) return;
    const int odd = threadIdx.x % 2, x = query_index(odd), row = x / GROUP_SIZE;
    PartSums sums;
    if (first) sums.clear();
    else sums = all[x];
    sums.add(odd ? acc.max_score[1] : acc.max_score[0], odd ? acc.sum[1] : acc.sum[0]);
    __syncwarp();  // all lanes have read the sums of the earlier parts
    if (threadIdx.x % 4 < 2) all[x] = sums;
    __syncwarp();  // the sums are stored before the next part
    const bool needed = x < item.queries.n && item.split < n_splits_of(item.kv.committed + item.own + row);
    const size_t at = partial_at(item.queries.row + row, item.queries.head, item.split) * GROUP_SIZE;
    float* to = partial + at * HEAD_DIM + x % GROUP_SIZE * 8 + threadIdx.x % 4 / 2 * 4;
    constexpr int IN_FLIGHT = HEAD_DIM % 64 ? 4 : 8;  // column blocks of 8 whose loads are in flight together
    UNROLL for (int start = 0; start < HEAD_DIM / 8; start += IN_FLIGHT) {
        float4 earlier[IN_FLIGHT];
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            earlier[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (needed && !first) earlier[i] = *(const float4*)(to + (start + i) * (8 * GROUP_SIZE));
        }
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            const float* o = acc.o[start + i];
            const float a = __shfl_xor_sync(~0u, odd ? o[0] : o[2], 1), b = __shfl_xor_sync(~0u, odd ? o[1] : o[3], 1);
            const float4 own = odd ? make_float4(a, b, o[2], o[3]) : make_float4(o[0], o[1], a, b);
            if (needed) *(float4*)(to + (start + i) * (8 * GROUP_SIZE)) = sums.values(earlier[i], own);
        }
    }
    if (needed && threadIdx.x % 4 < 2) *(float2*)(stats + 2 * (at + x % GROUP_SIZE)) = make_float2(sums.largest, sums.total);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode_q8_0_hopper(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                   const int* counts, const int* first, const int* parent, const int* depth, const int* length,
                   const int* pages, int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    __shared__ __align__(8) u64 barriers[2 * STAGES + 2 * RAW_STAGES];
    __shared__ Batch batch;
    __shared__ Item items[WARPGROUPS];
    __shared__ int limits[WARPGROUPS][MAX_ROWS], kinds[RAW_STAGES];
    __shared__ KvRange parts[WARPGROUPS][PARTS];
    __shared__ PartSums of_parts[TILE_Q];
    __shared__ u64 above[WARPGROUPS][MAX_ROWS];
    launch_dependent_grids();
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, stages = query_tile + QUERY_TILE_BYTES;
    const u32 full = smem_address(barriers), raw_full = full + 16 * STAGES, raw_stages = stages + STAGES * TILE_BYTES;
    Pipeline pipeline = {stages, full, full + 8 * STAGES, 0, 0};
    const RawPipeline raw = {raw_stages, raw_full, raw_full + 8 * RAW_STAGES, 0, 0};
    if (threadIdx.x == PENDING) init_pipeline(pipeline), init_raw_pipeline(raw);
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    __syncthreads();  // barriers and batch are ready
    if (threadIdx.x >= 2 * TILE_Q) {
        setmaxnreg_producer();
        const int producer = threadIdx.x - 2 * TILE_Q;
        if (producer < UNPACKERS)
            unpack_tiles(raw, pipeline, memory + (raw_stages - smem_address(memory)), kinds, producer);
        else if (producer == UNPACKERS)
            copy_raw_items(raw, k, v, batch, pages, max_pages, kinds);
    } else {
        setmaxnreg_consumer();
        const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
        const u32 own = query_tile + group * WARPGROUP_TILE;
        Item& item = items[group];
        if (thread == 0) item.sequence = item.before = 0;
        wait_on_dependent_grids();
        for (int n = blockIdx.x;; n += gridDim.x) {
            warpgroup_sync();  // the warpgroup no longer reads its previous item
            if (thread == 0) find(n, item, batch, pages, max_pages);
            warpgroup_sync();  // the item is stored
            if (item.queries.n == 0) break;
            if (group * 64 >= item.queries.n) {
                skip(pipeline, item.kv);
                continue;
            }
            if (thread < PARTS) parts[group][thread] = part_of(item, thread);
            if (thread < item.rows) read_mask(item, thread, batch, limits[group], above[group]);
            store_queries_of_words(own, q, item.queries);
            warpgroup_sync();  // parts, queries and masks are stored before any warp reads them
            const Mask mask = {item.kv.committed, item.kv.committed, 0, limits[group], above[group]};
#pragma unroll 1
            for (int p = 0; p < PARTS; ++p) {
                const KvRange& part = parts[group][p];
                if (part.begin == part.end) continue;
                u32 query_lines = own;
                asm volatile("" : "+r"(query_lines));  // or wgmma's descriptors of all lines stay in registers, too many
                Softmax acc;
                mainloop(pipeline, part, mask, query_lines, acc);
                add_part(item, part.begin == item.kv.begin, acc, of_parts, partial, stats);
            }
        }
    }
}
