// Attention of the rows of blocks, up to what `combine` does: context.cuh says what they see, attention/flash.cuh how.
//
// A block of threads reads a part of a sequence's tiles with the queries of one head of the ring, of up to MOST_ROWS rows.
// Grid (SPLITS, KV, sequences * tiles of queries), with `query_tiles` of them a sequence; block and shared memory:
// attention/together.cuh. What the blocks are, and their contexts, are read before earlier kernels are done: these must not be
// what writes them.
// Bytes: 4 * KV * HEAD for each position, and for each query 4 * HEAD a part.
#define TREES 0
#define GATED 0
#include "../gpu/include/pdl.cuh"
#include "context.cuh"
#include "../attention/leave.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 1)
block_attend(const unsigned short* q, const unsigned short* k, const unsigned short* v, const unsigned short* ring_k,
             const unsigned short* ring_v, const int* counts, const int* first, const int* slot, const int* begin,
             const int* length, int query_tiles, float* partial, float* stats) {
    extern __shared__ u8 memory[];
    launch_dependent_grids();
    const int part = blockIdx.x, head = blockIdx.y, s = blockIdx.z / query_tiles, own = blockIdx.z % query_tiles * MOST_ROWS;
    // all at once, also of a sequence that there is not
    const int sequences = counts[1], here = slot[s], row = first[s];
    const Tiles tiles({first, begin, length}, s);
    if (s >= sequences || own >= tiles.rows || part >= tiles.parts) {
        wait_on_dependent_grids();
        return;
    }
    const u32 query_tile = (smem_address(memory) + 1023) / 1024 * 1024, slots = query_tile + QUERY_TILE;
    const size_t ring = ((size_t)here * PLACES * KV + head) * HEAD, block = ((size_t)row * KV + head) * HEAD;
    const Sources keys = {ring_k + ring, k + block}, values = {ring_v + ring, v + block};
    const int start = tiles.first + part * tiles.steps;
    const Context context = {start, min(start + tiles.steps, tiles.own + 1), tiles.own, tiles.oldest, tiles.length, tiles.rows};
    // the block's own tile is the last: only its keys and values are made by this pass
    const int settled = 2 * (tiles.own - start) - 1;
    for (int i = 0; i < min(settled, SLOTS); ++i) fetch(slots, keys, values, context, i);
    wait_on_dependent_grids();
    for (int i = max(settled, 0); i < SLOTS; ++i) fetch(slots, keys, values, context, i);
    const Queries queries = {row, own * GROUP, min(tiles.rows - own, MOST_ROWS) * GROUP, head};
    store_queries(query_tile, q, queries);
    const Band band = {context, own};
    Sums sums;
    read(keys, values, context, band, (int)threadIdx.x / 32 * 16 >= queries.n, query_tile, slots, sums);
    leave(queries, part, true, sums, partial, stats);
}
