// Attention of blocks of draft rows: partial results of each split (split-KV); `combine` follows. context.cuh defines which
// positions a row attends to.
//
// A thread block reads one split of a sequence's tiles with the queries of one KV head, for up to MAX_ROWS rows. Grid
// (MAX_SPLITS, KV_HEADS, sequences * query_tiles), with `query_tiles` query tiles a sequence. Block, roles and shared
// memory: attention/mainloop.cuh. The arrays that describe the blocks and their contexts are read before earlier kernels
// have ended, so these must not write them. Macros: those of context.cuh.
// Bytes: 4 * KV_HEADS * HEAD_DIM for each position, and 4 * HEAD_DIM for each query and split.
#define TREE_MASK 0
#define GATED 0
#include "../gpu/include/pdl.cuh"
#include "context.cuh"
#include "../attention/store_partial.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
block_attend(const unsigned short* q, const unsigned short* k, const unsigned short* v, const unsigned short* ring_k,
             const unsigned short* ring_v, const int* counts, const int* first, const int* slot, const int* begin,
             const int* length, int query_tiles, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    launch_dependent_grids();
    const int split = blockIdx.x, head = blockIdx.y, s = blockIdx.z / query_tiles, own = blockIdx.z % query_tiles * MAX_ROWS;
    // all loads are issued together, even if the sequence does not exist
    const int sequences = counts[1], here = slot[s], row = first[s];
    const SequenceTiles tiles({first, begin, length}, s);
    if (s >= sequences || own >= tiles.rows || split >= tiles.n_splits) {
        wait_on_dependent_grids();
        return;
    }
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, stages = query_tile + QUERY_TILE_BYTES;
    const size_t ring = ((size_t)here * RING_SIZE * KV_HEADS + head) * HEAD_DIM,
                 block = ((size_t)row * KV_HEADS + head) * HEAD_DIM;
    const KvSource keys = {ring_k + ring, k + block}, values = {ring_v + ring, v + block};
    const int start = tiles.first + split * tiles.steps;
    const Context context = {start,     min(start + tiles.steps, tiles.own + 1), tiles.own, tiles.oldest, tiles.length,
                             tiles.rows};
    // the last tile is the block itself: only its keys and values are written by this pass
    const int n_ready = 2 * (tiles.own - start) - 1;
    for (int i = 0; i < min(n_ready, STAGES); ++i) fetch(stages, keys, values, context, i);
    wait_on_dependent_grids();
    for (int i = max(n_ready, 0); i < STAGES; ++i) fetch(stages, keys, values, context, i);
    const QueryTile queries = {row, own * GROUP_SIZE, min(tiles.rows - own, MAX_ROWS) * GROUP_SIZE, head};
    store_queries(query_tile, q, queries);
    const BlockMask mask = {context, own};
    Softmax acc;
    mainloop(keys, values, context, mask, (int)threadIdx.x / 32 * 16 >= queries.n, query_tile, stages, acc);
    store_partial(queries, split, true, acc, partial, stats);
}
