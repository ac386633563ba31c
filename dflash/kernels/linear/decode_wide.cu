// Multiply of a decode pass of many tokens on Hopper: out = x @ W.T, with the bits of decode.cu for every token.
//
// A weight is read and unpacked once for all tokens. Each of eight consumer warps unpacks tiles of 16 rows to A fragments,
// and its warpgroup multiplies 64 rows with all tokens (wgmma). Sums are added in the order of decode.cu: the columns of a
// group in the tensor core, then groups, tiles and minima, then the K slices one after another.
//
// A group is the eight row tiles of a block (GATED: four of the gate and the same four of the up projection), a unit 256
// columns of a group. Each block takes an equal share of the units in a row. A share may begin or end inside a K slice; then
// the block before passes its sums on. It does so first and the block after continues them last, so that no block waits long.
// At the end of a slice a warp stores its sums in `partials`. The warp that is the last to do so for an output tile adds the
// slices in order and runs the epilogue.
//
// A thread of the third warpgroup brings the tokens, which arrange.cu has laid out, with bulk copies.
//
// Grid: at most one block a multiprocessor, since blocks wait for each other. Block 384, shared memory SMEM_BYTES.
// Macros: QUANTS, the formats, separated by commas; TOKENS, capacity, a multiple of 16 up to 128; MODE and NORM, see
// epilogue.cuh; SLICES of K; X_STAGES, stages of 128 columns of the tokens; W_STAGES, tiles in the ring of a warp;
// SMEM_BYTES.
// Bytes: the tiles once; the tokens once for each group, from the L2 cache; with SLICES > 1 or GATED the sums of each slice
// are written and read once, in the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/sm90.cuh"
#include "../gpu/include/tma.cuh"
#include "../gpu/include/wgmma.cuh"
#include "epilogue.cuh"
#include "../formats/mma_tile.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(NORM) || !defined(SLICES)
#error "QUANTS, TOKENS, MODE, NORM and SLICES must be defined"
#endif
#if !defined(X_STAGES) || !defined(W_STAGES) || !defined(SMEM_BYTES)
#error "X_STAGES, W_STAGES and SMEM_BYTES must be defined"
#endif

constexpr int NT = TOKENS / 8, UNIT_COLUMNS = 256, WARPS = 8, THREADS = 32 * (WARPS + 4);
constexpr int SIDES = MODE == GATED ? 2 : 1, GROUP_TILES = WARPS / SIDES;
constexpr int BLOCK_BYTES = TOKENS * 128, HALF_BYTES = 2 * BLOCK_BYTES;  // 64 and 128 columns of the tokens
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

constexpr int SUM_BYTES = TOKENS * 4 * All::MINIMA;
constexpr int STAGE_BYTES = (HALF_BYTES + SUM_BYTES + 1023) / 1024 * 1024, RINGS_AT = X_STAGES * STAGE_BYTES;
static_assert(1024 + RINGS_AT + WARPS * W_STAGES * All::BYTES <= SMEM_BYTES, "SMEM_BYTES must hold all stages");

struct Weight {
    u64 tiles, out;
    int rows, stride, type;
};

// Units of one group and one K slice, or a part of them: columns `first` to `past`, counted in units.
struct Item {
    const u8 *tiles, *second;
    float* out;
    int rows, stride, type, first_tile, before;  // first row tile of the group; row tiles of the weights before
    int slice, first, past;
    bool continues, goes_on;  // another block has the beginning, or the end, of the slice

    __device__ int row_tiles() const { return (rows + 15) / 16; }
};

struct Job {
    int units;  // units of a group
    Weight weights[4];

    __device__ __forceinline__ static int groups_of(const Weight& w) { return ((w.rows + 15) / 16 + GROUP_TILES - 1) / GROUP_TILES; }
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
    int first, last, at, head_end;  // units: of the block; of its last item; the next item; end of the first item

    __device__ __forceinline__ Items(const Job& job) {
        const long long all = job.all_units();
        first = (int)(all * blockIdx.x / gridDim.x);
        const int past = (int)(all * (blockIdx.x + 1) / gridDim.x);
        last = max(first, job.begin_of(past - 1)), head_end = min(past, job.end_of(first)), at = -1;
    }
    __device__ __forceinline__ bool next(const Job& job, Item& item) {
        int begin, end;
        if (at < 0) {
            begin = last, end = (int)((long long)job.all_units() * (blockIdx.x + 1) / gridDim.x), at = head_end;
        } else if (at < last) {
            begin = at, end = at = job.end_of(at);
        } else if (first < last) {
            begin = first, end = head_end, first = last;
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

// The ring of the tokens. A stage has 128 columns; the second one of a unit also has the sums of the unit's groups.
struct Pipe {
    u8* memory;
    u32 address, full, empty;
    int stage, phase;

    __device__ __forceinline__ u32 wait() const {
        mbarrier_wait(full + 8 * stage, phase);
        return address + stage * STAGE_BYTES;
    }
    __device__ __forceinline__ const u8* sums() const { return memory + stage * STAGE_BYTES + HALF_BYTES; }
    // All lanes have read the stage.
    __device__ __forceinline__ void release(int lane) {
        __syncwarp();
        if (lane == 0) mbarrier_arrive(empty + 8 * stage);
        next();
    }
    __device__ __forceinline__ void next() {
        if (++stage == X_STAGES) stage = 0, phase ^= 1;
    }
};

struct Ring {
    u8* memory;
    u32 address, barrier;
    int stage, phase;
};

// Descriptor of the tokens of 32 columns, number `block` of a stage.
__device__ __forceinline__ u64 columns_at(u32 stage, int block) {
    return wgmma_descriptor(stage + block / 2 * BLOCK_BYTES + block % 2 * 64);
}

// total += a tile of one group times all tokens. `first`: the tile's first 32-column block in its stage.
template <class Q>
__device__ __forceinline__ void multiply_whole(const u8* tile, Pipe& pipe, int first, int lane, float (&total)[NT][4]) {
    constexpr int BLOCKS = Q::TILE_K / 32;
    float part[NT][4];
    u32 a[2][8], x = 0;
    typename Q::Scales scales(tile, lane);
    UNROLL for (int j = 0; j < BLOCKS; ++j) {
        warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
        if (j == 0) x = pipe.wait();
        if (j == 4) {
            Pipe ahead = pipe;
            ahead.next();
            x = ahead.wait();
        }
        const u64 b = columns_at(x, BLOCKS == 8 ? j % 4 : first + j);
        wgmma_fence_operand(part);
        wgmma_fence();
        wgmma_rs(part, a[j % 2], b, j > 0);
        wgmma_rs(part, a[j % 2] + 4, b + 2, 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the fragments before these may be overwritten, and their columns
        if (j == 4) pipe.release(lane);
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(part);
    const float upper = row_scale<Q>(tile, lane / 4), lower = row_scale<Q>(tile, lane / 4 + 8);
    UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[n], part[n], upper, lower);
    if constexpr (Q::MINIMA > 0) add_minima<Q, NT>(tile, pipe.sums(), lane, total);
    if (BLOCKS == 8 || first + BLOCKS == 4) pipe.release(lane);
}

// The same for groups of 16 or 32 columns, whose sums are scaled one by one. Half of the tokens are multiplied while the sums
// of the other half are added.
template <class Q>
__device__ __forceinline__ void multiply_groups(const u8* tile, Pipe& pipe, int lane, float (&total)[NT][4]) {
    constexpr int HALF = NT / 2, OF_BLOCK = 32 / Q::GROUP, PRODUCTS = 16 * OF_BLOCK;
    float part[2][HALF][4], scaled[Q::GROUP == 16 ? NT : 1][4];
    u32 a[2][8], x = 0;
    typename Q::Scales scales(tile, lane);
    if constexpr (Q::GROUP == 16) clear(scaled);
    UNROLL for (int i = 0; i <= PRODUCTS; ++i) {
        const int half = i % 2, group = i / 2, j = group / OF_BLOCK, m = group % OF_BLOCK;
        if (i < PRODUCTS) {
            if (i % (2 * OF_BLOCK) == 0) warp_fragment<Q>(tile, scales, j, lane, a[j % 2]);
            if (i == 0) x = pipe.wait();
            if (i == PRODUCTS / 2) {
                Pipe ahead = pipe;
                ahead.next();
                x = ahead.wait();
            }
            const u64 b = columns_at(x, j % 4) + half * (HALF * 8 * 128 >> 4);
            wgmma_fence_operand(part[half]);
            wgmma_fence();
            wgmma_rs(part[half], a[j % 2] + 4 * m, b + 2 * m, 0);
            if constexpr (Q::GROUP == 32) wgmma_rs(part[half], a[j % 2] + 4, b + 2, 1);
            wgmma_commit_group();
            wgmma_wait_group<1>();
        } else {
            wgmma_wait_group<0>();
        }
        if (i == PRODUCTS / 2) pipe.release(lane);
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
            multiply_whole<Q>(tile, pipe, i % 2 * 2, lane, total);
        } else {
            multiply_groups<Q>(tile, pipe, lane, total);
        }
        __syncwarp();  // all lanes have read the tile that `fetch` overwrites
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
        __threadfence();  // the sums are visible before they are announced
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
        __threadfence();  // the sums are read after they were announced
        UNROLL for (int n = 0; n < NT; ++n) {
            const float4 v = load_l2(sums + (at * NT + n) * 128 + 4 * lane);
            total[n][0] = v.x, total[n][1] = v.y, total[n][2] = v.z, total[n][3] = v.w;
        }
    }
};

// Sum of the slices of token tile `n` of a row tile, from zero on and in order.
__device__ __forceinline__ float4 sum_slices(const float* partials, int tile, int n, int lane) {
    const float* from = partials + ((size_t)tile * NT + n) * SLICES * 128 + 4 * lane;
    float4 parts[SLICES], sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int s = 0; s < SLICES; ++s) parts[s] = load_l2(from + 128 * s);
    UNROLL for (int s = 0; s < SLICES; ++s)
        sum.x += parts[s].x, sum.y += parts[s].y, sum.z += parts[s].z, sum.w += parts[s].w;
    return sum;
}

// Store the sums of a warp's tile; the last warp of an output tile adds the slices and writes the outputs.
__device__ __forceinline__ void finish(const Item& item, const Epilogue& to, const float (&total)[NT][4], int n_tokens,
                                       float* partials, int* counts, int warp, int lane) {
    const int row_tile = item.first_tile + warp % GROUP_TILES;
    if (row_tile >= item.row_tiles()) return;
    const auto tile_at = [&](int n) {
        return OutputTile{item.out, item.rows, item.stride, row_tile * 16, 8 * n, n_tokens};
    };
    if constexpr (DIRECT) {
        UNROLL for (int n = 0; n < NT; ++n) {
            if (8 * n >= n_tokens) break;
            EpilogueInputs<MODE, NORM> loaded;
            loaded.load(to, tile_at(n), lane);
            const float4 sum = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
            write<MODE, NORM>(to, tile_at(n), loaded, lane, sum, sum);
        }
        return;
    }
    const int up = MODE == GATED ? item.row_tiles() : 0;  // tiles between a gate and its up projection
    const int tile = item.before + row_tile, own = tile + (warp >= GROUP_TILES ? up : 0);
    UNROLL for (int n = 0; n < NT; ++n) {
        if (8 * n >= n_tokens) break;
        float* at = partials + (((size_t)own * NT + n) * SLICES + item.slice) * 128 + 4 * lane;
        *(float4*)at = make_float4(total[n][0], total[n][1], total[n][2], total[n][3]);
    }
    __threadfence();  // the sums are visible before they are counted
    __syncwarp();
    int count = 0;
    if (lane == 0) count = atomicAdd(counts + tile, 1);
    if (__shfl_sync(~0u, count, 0) != SLICES * SIDES - 1) return;
    __threadfence();  // the sums of the other warps are read after they were counted
    if (lane == 0) counts[tile] = 0;
#pragma unroll(SLICES * SIDES > 4 ? 2 : 4)
    for (int n = 0; n < NT; ++n) {
        if (8 * n >= n_tokens) break;
        EpilogueInputs<MODE, NORM> loaded;
        loaded.load(to, tile_at(n), lane);
        const float4 sum = sum_slices(partials, tile, n, lane);
        write<MODE, NORM>(to, tile_at(n), loaded, lane, sum, MODE == GATED ? sum_slices(partials, tile + up, n, lane) : sum);
    }
}

// Role of the producer thread: copy the tokens of all items. `tokens`: their layouts for each type, and the bytes of a unit.
struct Tokens {
    const u8* units;
    int bytes;
};

__device__ __forceinline__ void produce(const Job& job, const Tokens (&tokens)[3], Pipe pipe) {
    Item item;
    Items items(job);
    while (items.next(job, item)) {
        const Tokens& own = item.type == 0 ? tokens[0] : item.type == 1 ? tokens[1] : tokens[2];
        for (int i = item.first; i < item.past; ++i) {
            const u8* unit = own.units + (size_t)i * own.bytes;
            UNROLL for (int h = 0; h < 2; ++h) {
                const int bytes = h ? own.bytes - HALF_BYTES : HALF_BYTES;
                mbarrier_wait(pipe.empty + 8 * pipe.stage, pipe.phase ^ 1);
                mbarrier_arrive_expect_tx(pipe.full + 8 * pipe.stage, bytes);
                bulk_copy(pipe.address + pipe.stage * STAGE_BYTES, unit + h * HALF_BYTES, bytes, pipe.full + 8 * pipe.stage);
                pipe.next();
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode_wide(int n_tokens, int width, float scale, const float* gates, const float* gain, unsigned short* halves,
            float* squares, float* factors, float* kept,
            unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
            unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
            unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
            unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3,
            unsigned long long tokens_0, int bytes_0, unsigned long long tokens_1, int bytes_1, unsigned long long tokens_2,
            int bytes_2, float* partials, int* counts, float* passed, int* there) {
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
    Pipe pipe = {shared + (address - start), address, smem_address(full), smem_address(empty), 0, 0};
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

    if (warp >= WARPS) {
        setmaxnreg_dec<24>();
        if (warp > WARPS) return;
        const Tokens tokens[3] = {
            {(const u8*)tokens_0, bytes_0}, {(const u8*)tokens_1, bytes_1}, {(const u8*)tokens_2, bytes_2}};
        if (lane == 0) produce(job, tokens, pipe);
        return;
    }
    setmaxnreg_inc<240>();
    const Epilogue to = {scale, gates, gain, halves, squares, factors, kept};
    const Passed between = {passed, there};
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
        } else {
            finish(item, to, total, n_tokens, partials, counts, warp, lane);
        }
    }
#endif
}
