// Multiply of a decode pass of many tokens on Hopper: out = x @ W.T, with the bits of decode.cu for every token.
//
// A weight is read and unpacked once for all tokens. Each of eight consumer warps unpacks tiles of 16 rows to A fragments,
// and its warpgroup multiplies 64 rows with all tokens (wgmma). Sums are added in the order of decode.cu: the columns of a
// group in the tensor core, then groups, tiles and minima, then the K slices one after another.
//
// A group is the eight row tiles of a block (GATED: four of the gate and the same four of the up projection), a unit 256
// columns of a group. Each block takes an equal share of the units in a row. A share may begin or end inside a K slice; then
// the block before passes its sums on. It does so first and the block after continues them last, so that none waits long.
// The sums of the slices are stored in `partials`. At the end the warps that have a slice of a row tile wait for the others,
// and add the slices of its outputs in order, each for some of the tokens.
//
// First all blocks bring the tokens into the order that the tensor cores need (arrange.cuh) and compute the factors of their
// norm. A thread of the third warpgroup then copies them to stages of 64 columns.
//
// Grid: at most one block a multiprocessor, since blocks wait for each other. Block 384, shared memory SMEM_BYTES.
// Macros: QUANTS, the formats, separated by commas; TOKENS, capacity, a multiple of 16 up to 128; MODE and NORM, see
// epilogue.cuh; SLICES of K; X_STAGES, stages of the tokens, at least 5; W_STAGES, tiles in the ring of a warp; SMEM_BYTES.
// Bytes: the tiles once; the tokens once for each group, from the L2 cache; the sums of each slice, unless there is one, are
// written and read once, in the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/sm90.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "arrange.cuh"
#include "epilogue.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(NORM) || !defined(SLICES)
#error "QUANTS, TOKENS, MODE, NORM and SLICES must be defined"
#endif
#if !defined(X_STAGES) || !defined(W_STAGES) || !defined(SMEM_BYTES)
#error "X_STAGES, W_STAGES and SMEM_BYTES must be defined"
#endif

constexpr int NT = TOKENS / 8, WARPS = 8, ALL_WARPS = WARPS + 4, UNIT_STAGES = UNIT_COLUMNS / 64;
constexpr int SIDES = MODE == GATED ? 2 : 1, GROUP_TILES = WARPS / SIDES;
constexpr bool DIRECT = SLICES == 1 && MODE != GATED;
static_assert(TOKENS % 16 == 0 && TOKENS <= 128, "see the macros above");

template <class Q, class... Others>
struct Formats {
    using Rest = Formats<Others...>;
    static constexpr int BYTES = Q::BYTES > Rest::BYTES ? Q::BYTES : Rest::BYTES;
    static constexpr int MINIMA = Q::MINIMA > Rest::MINIMA ? Q::MINIMA : Rest::MINIMA;
    __device__ static int bytes(int type) { return type == 0 ? Q::BYTES : Rest::bytes(type - 1); }
    __device__ static int tile_k(int type) { return type == 0 ? Q::TILE_K : Rest::tile_k(type - 1); }
};
template <class Q>
struct Formats<Q> {
    static constexpr int BYTES = Q::BYTES, MINIMA = Q::MINIMA;
    __device__ static int bytes(int) { return Q::BYTES; }
    __device__ static int tile_k(int) { return Q::TILE_K; }
};
using All = Formats<QUANTS>;

// The sums of as many units as may have stages at once are behind the stages.
constexpr int SUM_BYTES = TOKENS * 4 * All::MINIMA, SUM_STAGES = (X_STAGES + UNIT_STAGES - 1) / UNIT_STAGES;
constexpr int SUMS_AT = X_STAGES * BLOCK_BYTES, RINGS_AT = SUMS_AT + SUM_STAGES * SUM_BYTES;
static_assert(1024 + RINGS_AT + WARPS * W_STAGES * All::BYTES <= SMEM_BYTES, "SMEM_BYTES must hold all stages");

struct Weight {
    u64 tiles, out;
    int rows, stride, type;
};

// Units of one group and one K slice, or a part of them: columns `first` to `past`, counted in units.
struct Item {
    const u8 *tiles, *second;
    float* out;
    int rows, stride, type, first_tile, before;  // first row tile of the block; row tiles of the weights before
    int slice, first, past;
    bool continues, goes_on;  // another block has the beginning, or the end, of the slice

    __device__ int row_tiles() const { return (rows + 15) / 16; }
};

struct Job {
    int units;  // units of a group
    Weight weights[4];

    __device__ __forceinline__ static int groups_of(const Weight& w) {
        return ((w.rows + 15) / 16 + GROUP_TILES - 1) / GROUP_TILES;
    }
    __device__ __forceinline__ int all_units() const {
        int groups = 0;
        UNROLL for (int i = 0; i < (MODE == GATED ? 1 : 4); ++i) groups += groups_of(weights[i]);
        return groups * units;
    }
    __device__ __forceinline__ int slice_begin(int slice) const { return units * slice / SLICES; }
    __device__ __forceinline__ int slice_of(int unit) const {
        int slice = unit * SLICES / units;
        while (slice + 1 < SLICES && slice_begin(slice + 1) <= unit) ++slice;
        while (slice_begin(slice) > unit) --slice;
        return slice;
    }
    // First unit of the slice that has `unit`, and of the next one; both count over all groups.
    __device__ __forceinline__ int begin_of(int unit) const {
        return unit - unit % units + slice_begin(slice_of(unit % units));
    }
    __device__ __forceinline__ int end_of(int unit) const {
        return unit - unit % units + slice_begin(slice_of(unit % units) + 1);
    }
    __device__ __forceinline__ void locate(int begin, int end, Item& item) const {
        int group = begin / units, before = 0;
        item.first = begin % units, item.past = item.first + end - begin;
        item.slice = slice_of(item.first);
        item.continues = item.first != slice_begin(item.slice), item.goes_on = item.past != slice_begin(item.slice + 1);
        UNROLL for (int i = 0; i < (MODE == GATED ? 1 : 4); ++i) {
            const Weight& w = weights[i];
            const int groups = groups_of(w);
            if (group >= 0 && group < groups) {
                item.tiles = (const u8*)w.tiles, item.second = (const u8*)weights[1].tiles, item.out = (float*)w.out;
                item.rows = w.rows, item.stride = w.stride, item.type = w.type;
                item.first_tile = group * GROUP_TILES, item.before = before;
            }
            group -= groups, before += (w.rows + 15) / 16;
        }
    }
};

// The items of a block: first the one that the next block goes on with, last the one that the block before has begun.
struct Items {
    int first, head_end, tail, past, at;  // units: of the block; end of its first item; begin of its last one; the next item

    __device__ __forceinline__ Items(const Job& job) {
        const long long all = job.all_units();
        first = (int)(all * blockIdx.x / gridDim.x), past = (int)(all * (blockIdx.x + 1) / gridDim.x);
        tail = max(first, job.begin_of(past - 1)), head_end = min(past, job.end_of(first)), at = -1;
    }
    __device__ __forceinline__ bool next(const Job& job, Item& item) {
        int begin, end;
        if (at < 0) {
            begin = tail, end = past, at = head_end;
        } else if (at < tail) {
            begin = at, end = at = job.end_of(at);
        } else if (first < tail) {
            begin = first, end = head_end, tail = first;
        } else {
            return false;
        }
        job.locate(begin, end, item);
        return true;
    }
};

// The row tile of a consumer warp in an item; past the last row, the last tile again.
__device__ __forceinline__ int tile_of(const Item& item, int warp) {
    return min(item.first_tile + warp % GROUP_TILES, item.row_tiles() - 1);
}

// Tiles that a warp copies, in the order in which it reads them.
struct TileCursor {
    const u8* at;
    int left, bytes;
    Items items;

    __device__ __forceinline__ void next_item(const Job& job, int warp) {
        Item item;
        if (!items.next(job, item)) return;
        const int tile_k = All::tile_k(item.type), of_unit = UNIT_COLUMNS / tile_k;
        bytes = All::bytes(item.type), left = (item.past - item.first) * of_unit;
        const u8* tiles = MODE == GATED && warp >= GROUP_TILES ? item.second : item.tiles;
        at = tiles + ((size_t)tile_of(item, warp) * job.units + item.first) * of_unit * bytes;
    }
    // Copy the next tile, if there is one.
    __device__ __forceinline__ void fetch(const Job& job, int warp, u32 to, u32 barrier) {
        if (left == 0) next_item(job, warp);
        if (left == 0) return;
        if (elect_one()) {
            mbarrier_arrive_expect_tx(barrier, bytes);
            asm volatile(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], "
                "%4;" ::"r"(to),
                "l"(at), "r"(bytes), "r"(barrier), "l"(EVICT_FIRST)
                : "memory");
        }
        at += bytes, --left;
    }
};

// The ring of the tokens. A stage has 64 columns; with the last one of a unit come the sums of the unit's groups.
struct Pipe {
    u8* memory;
    u32 address, full, empty;
    int stage, phase, sum_stage;

    __device__ __forceinline__ u32 wait() const {
        mbarrier_wait(full + 8 * stage, phase);
        return address + stage * BLOCK_BYTES;
    }
    __device__ __forceinline__ const u8* sums() const { return memory + SUMS_AT + sum_stage * SUM_BYTES; }
    // All lanes have read the stage.
    __device__ __forceinline__ void release(int lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
        next();
    }
    __device__ __forceinline__ void next() {
        if (++stage == X_STAGES) stage = 0, phase ^= 1;
    }
    __device__ __forceinline__ void next_unit() {
        if (++sum_stage == SUM_STAGES) sum_stage = 0;
    }
};

struct Ring {
    u8* memory;
    u32 address, barrier;
    int stage, phase;
};

// Descriptor of the tokens of 32-column block `block` of a tile, which is half of a stage. `earlier`: the stage of the block
// before is still being read.
__device__ __forceinline__ u64 columns_of(const Pipe& pipe, int block, bool earlier) {
    Pipe at = pipe;
    if (earlier) at.next();
    return wgmma_descriptor(block % 2 ? at.address + at.stage * BLOCK_BYTES + 64 : at.wait());
}

// total += a tile of one group times all tokens.
template <class Q>
__device__ __forceinline__ void multiply_whole(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
    float part[NT][4];
    u32 a[2][8];
    typename Q::Scales scales(tile, lane);
    UNROLL for (int j = 0; j < Q::TILE_K / 32; ++j) {
        warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
        const bool next_stage = j > 0 && j % 2 == 0;
        const u64 b = columns_of(pipe, j, next_stage);
        wgmma_fence_operand(part);
        wgmma_fence();
        wgmma_rs(part, a[j % 2], b, j > 0);
        wgmma_rs(part, a[j % 2] + 4, b + 2, 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the fragments before these may be overwritten, and their columns
        if (next_stage) pipe.release(lane);
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(part);
    const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
    UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], upper, lower);
    if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    pipe.release(lane);
}

// The same for groups of 16 or 32 columns, whose sums are scaled one by one. Half of the tokens are multiplied while the sums
// of the other half are added.
template <class Q>
__device__ __forceinline__ void multiply_groups(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
    constexpr int HALF = NT / 2, OF_BLOCK = 32 / Q::GROUP, PRODUCTS = 16 * OF_BLOCK;
    float part[2][HALF][4], scaled[Q::GROUP == 16 ? NT : 1][4];
    u32 a[2][8];
    u64 b = 0;
    typename Q::Scales scales(tile, lane);
    if constexpr (Q::GROUP == 16) clear(scaled);
    UNROLL for (int i = 0; i <= PRODUCTS; ++i) {
        const int half = i % 2, group = i / 2, j = group / OF_BLOCK, m = group % OF_BLOCK;
        const bool next_stage = i > 0 && i < PRODUCTS && i % (4 * OF_BLOCK) == 0;
        if (i < PRODUCTS) {
            if (i % (2 * OF_BLOCK) == 0) {
                warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
                b = columns_of(pipe, j, next_stage);
            }
            const u64 columns = b + 2 * m + half * (HALF * 8 * 128 >> 4);
            wgmma_fence_operand(part[half]);
            wgmma_fence();
            wgmma_rs(part[half], a[j % 2] + 4 * m, columns, 0);
            if constexpr (Q::GROUP == 32) wgmma_rs(part[half], a[j % 2] + 4, columns + 2, 1);
            wgmma_commit_group();
            wgmma_wait_group<1>();
        } else {
            wgmma_wait_group<0>();
        }
        if (next_stage) pipe.release(lane);
        if (i == 0) continue;
        const int done = i - 1, of = done / 2, from = done % 2 * HALF;
        wgmma_fence_operand(part[done % 2]);
        const float upper = scales.of(0, of), lower = scales.of(1, of);
        UNROLL for (int n = 0; n < HALF; ++n) {
            if constexpr (Q::GROUP == 16) {
                add_scaled(scaled[from + n], part[done % 2][n], upper, lower);
            } else {
                add_scaled(total[from + n], part[done % 2][n], upper, lower);
            }
        }
    }
    if constexpr (Q::GROUP == 16) {
        const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
        UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], scaled[n], upper, lower);
    }
    if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    pipe.release(lane);
}

template <class Q>
__device__ __forceinline__ void multiply_item(const Job& job, const Item& item, Pipe& pipe, Ring& ring, TileCursor& cursor,
                                              int warp, int lane, float (&total)[NT][4]) {
    constexpr int TILES = UNIT_COLUMNS / Q::TILE_K;
    const int n = (item.past - item.first) * TILES;
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        mbarrier_wait(ring.barrier + 8 * ring.stage, ring.phase);
        const u8* tile = ring.memory + ring.stage * All::BYTES;
        if constexpr (Q::GROUP == Q::TILE_K) {
            multiply_whole<Q>(tile, pipe, lane, total);
        } else {
            multiply_groups<Q>(tile, pipe, lane, total);
        }
        if (TILES == 1 || i % TILES == TILES - 1) pipe.next_unit();
        cursor.fetch(job, warp, ring.address + ring.stage * All::BYTES, ring.barrier + 8 * ring.stage);
        if (++ring.stage == W_STAGES) ring.stage = 0, ring.phase ^= 1;
    }
}

template <class Q, class... Others>
__device__ __forceinline__ void multiply_any(int type, const Job& job, const Item& item, Pipe& pipe, Ring& ring,
                                             TileCursor& cursor, int warp, int lane, float (&total)[NT][4]) {
    if constexpr (sizeof...(Others) == 0) {
        multiply_item<Q>(job, item, pipe, ring, cursor, warp, lane, total);
    } else if (type == 0) {
        multiply_item<Q>(job, item, pipe, ring, cursor, warp, lane, total);
    } else {
        multiply_any<Others...>(type - 1, job, item, pipe, ring, cursor, warp, lane, total);
    }
}

// Order the accesses of this thread before and after, for all blocks.
__device__ __forceinline__ void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

__device__ __forceinline__ float4 load_l2(const float* from) {
    float4 v;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

// Sums of a warp that the next block goes on with, and whether they are there.
struct Passed {
    float* sums;  // (blocks, WARPS, NT, 128)
    int* there;   // (blocks, WARPS)

    __device__ __forceinline__ void give(const float (&total)[NT][4], int warp, int lane) const {
        const size_t at = (size_t)blockIdx.x * WARPS + warp;
        UNROLL for (int n = 0; n < NT; ++n)
            *(float4*)(sums + (at * NT + n) * 128 + 4 * lane) = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
        fence_gpu();  // the sums are visible before they are announced
        __syncwarp();
        if (lane == 0) atomicExch(there + at, 1);
    }
    __device__ __forceinline__ void take(float (&total)[NT][4], int warp, int lane) const {
        const size_t at = (size_t)(blockIdx.x - 1) * WARPS + warp;
        if (lane == 0) {
            while (atomicAdd(there + at, 0) == 0) __nanosleep(100);
            there[at] = 0;
        }
        __syncwarp();
        fence_gpu();  // the sums are read after they were announced
        UNROLL for (int n = 0; n < NT; ++n) {
            const float4 v = load_l2(sums + (at * NT + n) * 128 + 4 * lane);
            total[n][0] = v.x, total[n][1] = v.y, total[n][2] = v.z, total[n][3] = v.w;
        }
    }
};

// Outputs of the row tiles of a warp.
struct Outputs {
    const Epilogue& to;
    int n_tokens;
    float* partials;
    int* counts;
    int warp, lane;

    __device__ __forceinline__ int row_tile(const Item& item) const { return item.first_tile + warp % GROUP_TILES; }
    // Whether the warp has the end of a slice of rows that exist.
    __device__ __forceinline__ bool ends(const Item& item) const {
        return !item.goes_on && row_tile(item) < item.row_tiles();
    }
    __device__ __forceinline__ OutputTile tile_at(const Item& item, int n) const {
        return {item.out, item.rows, item.stride, row_tile(item) * 16, 8 * n, n_tokens};
    }
    __device__ __forceinline__ void write_tile(const Item& item, int n, float4 v, float4 up) const {
        EpilogueInputs<MODE, NORM> loaded;
        loaded.load(to, tile_at(item, n), lane);
        write<MODE, NORM>(to, tile_at(item, n), loaded, lane, v, up);
    }

    // Store the sums of a slice, or write the outputs if there is one slice.
    __device__ __forceinline__ void store(const Item& item, const float (&total)[NT][4]) const {
        const int up = MODE == GATED && warp >= GROUP_TILES ? item.row_tiles() : 0;
        float* to_partials = partials + (((size_t)item.before + row_tile(item) + up) * NT * SLICES + item.slice) * 128;
        UNROLL for (int n = 0; n < NT; ++n) {
            if (8 * n >= n_tokens) break;
            const float4 sum = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
            if constexpr (DIRECT) {
                write_tile(item, n, sum, sum);
            } else {
                *(float4*)(to_partials + n * SLICES * 128 + 4 * lane) = sum;
            }
        }
    }

    // The slices of token tile `n` of a row tile, added from zero on and in order.
    __device__ __forceinline__ float4 sum_slices(int tile, int n) const {
        const float* from = partials + ((size_t)tile * NT + n) * SLICES * 128 + 4 * lane;
        float4 parts[SLICES], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        UNROLL for (int s = 0; s < SLICES; ++s) parts[s] = load_l2(from + 128 * s);
        UNROLL for (int s = 0; s < SLICES; ++s)
            sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
        return sum;
    }

    // Count the slices that the warp has stored. Then add the slices of each of these row tiles; the warps that have a slice
    // of it share its tokens. The last one resets the count.
    __device__ __forceinline__ void add_slices(const Job& job) const {
        constexpr int SHARES = SLICES * SIDES, EACH = (NT + SHARES - 1) / SHARES;
        Item item;
        fence_gpu();  // the sums are visible before they are counted
        __syncwarp();
        for (Items items(job); items.next(job, item);) {
            if (lane == 0 && ends(item)) atomicAdd(counts + item.before + row_tile(item), 1);
        }
        for (Items items(job); items.next(job, item);) {
            if (!ends(item)) continue;
            const int tile = item.before + row_tile(item), up = MODE == GATED ? item.row_tiles() : 0;
            if (lane == 0) {
                while (atomicAdd(counts + tile, 0) < SHARES) __nanosleep(40);
            }
            __syncwarp();
            fence_gpu();  // the sums are read after they were counted
            const int share = item.slice * SIDES + warp / GROUP_TILES, past = (share + 1) * NT / SHARES;
            UNROLL for (int i = 0; i < EACH; ++i) {
                const int n = share * NT / SHARES + i;
                if (n >= past || 8 * n >= n_tokens) break;
                const float4 sum = sum_slices(tile, n);
                write_tile(item, n, sum, MODE == GATED ? sum_slices(tile + up, n) : sum);
            }
            __syncwarp();
            if (lane == 0 && atomicAdd(counts + tile, 1) == 2 * SHARES - 1) counts[tile] = 0;
        }
    }
};

// Bring the tokens into the layouts of all types that need one of their own. `made`: work that is shared out among warps.
struct Tokens {
    u8* units;
    int bytes, arranges;
};

template <class Q, class... Others>
__device__ __forceinline__ void arrange_all(const Tokens* tokens, const u16* x, int n_tokens, int width, int first, int step,
                                            int lane) {
    if (tokens->arranges) {
        for (int i = first; i < width / UNIT_COLUMNS * NT; i += step)
            arrange<Q>(x, n_tokens, width, i / NT, i % NT, tokens->units, lane);
    }
    if constexpr (sizeof...(Others) > 0) arrange_all<Others...>(tokens + 1, x, n_tokens, width, first, step, lane);
}

// Role of the producer thread: copy the tokens of all items.
__device__ __forceinline__ void produce(const Job& job, const Tokens (&tokens)[3], Pipe pipe) {
    Item item;
    Items items(job);
    while (items.next(job, item)) {
        const Tokens& own = item.type == 0 ? tokens[0] : item.type == 1 ? tokens[1] : tokens[2];
        const int sum_bytes = own.bytes - UNIT_STAGES * BLOCK_BYTES;
        for (int i = item.first; i < item.past; ++i) {
            const u8* unit = own.units + (size_t)i * own.bytes;
            UNROLL for (int h = 0; h < UNIT_STAGES; ++h) {
                const u32 barrier = pipe.full + 8 * pipe.stage;
                mbarrier_wait(pipe.empty + 8 * pipe.stage, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(barrier, BLOCK_BYTES + (h == UNIT_STAGES - 1 ? sum_bytes : 0));
                bulk_copy(pipe.address + pipe.stage * BLOCK_BYTES, unit + h * BLOCK_BYTES, BLOCK_BYTES, barrier);
                if (h == UNIT_STAGES - 1 && sum_bytes > 0) {
                    bulk_copy(pipe.address + SUMS_AT + pipe.sum_stage * SUM_BYTES, unit + UNIT_STAGES * BLOCK_BYTES, sum_bytes,
                              barrier);
                }
                pipe.next();
            }
            pipe.next_unit();
        }
    }
}

// Blocks that have arranged their tokens, and blocks that know that all have.
struct Arranged {
    int *ready, *known;

    __device__ __forceinline__ void announce() const {
        fence_async_proxy_all();  // the copies of other blocks see what this thread has stored
        __syncthreads();          // all threads have stored their tokens
        if (threadIdx.x == 0) fence_gpu(), atomicAdd(ready, 1);
    }
    // By one thread.
    __device__ __forceinline__ void wait() const {
        while (atomicAdd(ready, 0) != gridDim.x) __nanosleep(40);
        fence_gpu();
        fence_async_proxy_all();
        if (atomicAdd(known, 1) == gridDim.x - 1) *ready = 0, *known = 0;
    }
};

extern "C" __global__ void __launch_bounds__(32 * ALL_WARPS, 1)
decode_wide(const unsigned short* x, int n_tokens, int width, float scale, const float* gates, const float* gain,
            unsigned short* halves, float* squares, float eps, float* factors, float* kept,
            unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
            unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
            unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
            unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3,
            unsigned long long tokens_0, int bytes_0, int arranges_0, unsigned long long tokens_1, int bytes_1,
            int arranges_1, unsigned long long tokens_2, int bytes_2, int arranges_2, float* partials, int* counts,
            float* passed, int* there, int* arranged) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 shared[];
    __shared__ __align__(8) u64 weight_barriers[WARPS][W_STAGES], full[X_STAGES], empty[X_STAGES];
    launch_dependent_grids();

    const Job job = {width / UNIT_COLUMNS,
                     {{tiles_0, out_0, rows_0, stride_0, type_0},
                      {tiles_1, out_1, rows_1, stride_1, type_1},
                      {tiles_2, out_2, rows_2, stride_2, type_2},
                      {tiles_3, out_3, rows_3, stride_3, type_3}}};
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const u32 start = smem_address(shared), address = (start + 1023) & ~1023u;
    Pipe pipe = {shared + (address - start), address, smem_address(full), smem_address(empty), 0, 0, 0};
    if (threadIdx.x < X_STAGES) {
        mbarrier_init(pipe.full + 8 * threadIdx.x, 1);
        mbarrier_init(pipe.empty + 8 * threadIdx.x, WARPS);
    }
    Ring ring = {};
    TileCursor cursor = {nullptr, 0, 0, Items(job)};
    if (warp < WARPS) {
        const int at = RINGS_AT + warp * (W_STAGES * All::BYTES);
        ring = {pipe.memory + at, address + at, smem_address(weight_barriers[warp]), 0, 0};
        if (lane < W_STAGES) mbarrier_init(ring.barrier + 8 * lane, 1);
        __syncwarp();  // the warp's barriers are initialised
        for (int s = 0; s < W_STAGES; ++s) cursor.fetch(job, warp, ring.address + s * All::BYTES, ring.barrier + 8 * s);
    }
    __syncthreads();  // the barriers of the tokens are initialised
    wait_on_dependent_grids();

    const Tokens tokens[3] = {{(u8*)tokens_0, bytes_0, arranges_0},
                              {(u8*)tokens_1, bytes_1, arranges_1},
                              {(u8*)tokens_2, bytes_2, arranges_2}};
    const Epilogue to = {scale, gates, gain, halves, squares, factors, kept, nullptr};
    const int turn = warp * gridDim.x + blockIdx.x, step = ALL_WARPS * gridDim.x;
    arrange_all<QUANTS>(tokens, x, n_tokens, width, turn, step, lane);
    // The last warps have no tokens of narrow matrices to arrange.
    if constexpr (NORM == INPUT_NORM) compute_norm_scales(to, width, eps, n_tokens, step - 1 - turn, step, lane);
    const Arranged all = {arranged, arranged + 1};
    all.announce();

    if (warp >= WARPS) {
        setmaxnreg_dec<40>();
        if (warp == WARPS && lane == 0) {
            all.wait();
            produce(job, tokens, pipe);
        }
        __syncwarp();
    } else {
        setmaxnreg_inc<232>();
        const Passed between = {passed, there};
        const Outputs outputs = {to, n_tokens, partials, counts, warp, lane};
        Item item;
        Items items(job);
        while (items.next(job, item)) {
            float total[NT][4];
            if (item.continues) {
                between.take(total, warp, lane);
            } else {
                clear(total);
            }
            multiply_any<QUANTS>(item.type, job, item, pipe, ring, cursor, warp, lane, total);
            if (item.goes_on) {
                between.give(total, warp, lane);
            } else if (outputs.ends(item)) {
                outputs.store(item, total);
            }
        }
        if constexpr (!DIRECT) outputs.add_slices(job);
    }
#endif
}
