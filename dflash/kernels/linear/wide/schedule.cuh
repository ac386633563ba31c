// Work of decode_wide.cu: units of 256 columns of a group of row tiles, shared out evenly among the blocks in a row.
//
// Macros: QUANTS, TOKENS, MODE, SLICES and WARPS, see decode_wide.cu.
#pragma once
#include "../../formats/quants.cuh"
#include "../../gpu/include/mbarrier.cuh"
#include "../../gpu/include/sm90.cuh"
#include "../../gpu/include/tma.cuh"
#include "../epilogue.cuh"

#if !defined(QUANTS) || !defined(TOKENS) || !defined(MODE) || !defined(SLICES) || !defined(WARPS)
#error "QUANTS, TOKENS, MODE, SLICES and WARPS must be defined"
#endif

constexpr int UNIT_COLUMNS = 256, NT = TOKENS / 8, ALL_WARPS = WARPS + 4;
constexpr int SIDES = MODE == GATED ? 2 : 1, GROUP_TILES = WARPS / SIDES;
constexpr bool DIRECT = SLICES == 1 && MODE != GATED;
static_assert(TOKENS % 16 == 0 && TOKENS <= 128 && (WARPS == 8 || WARPS == 12), "see decode_wide.cu");

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
    bool whole;               // the block has all slices of the group, one after another

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

// The items of a block: first a part of a group that the next block goes on with, then whole groups, last the rest of a group
// that the block before has begun.
struct Items {
    int first, head_end, tail, past, at;  // units; head and tail are empty if their groups are whole

    __device__ __forceinline__ Items(const Job& job) {
        const long long all = job.all_units();
        const int block = blockIdx.x, blocks = gridDim.x;
        first = (int)(all * block / blocks), past = (int)(all * (block + 1) / blocks);
        tail = past % job.units ? max(first, job.begin_of(past - 1)) : past;
        head_end = first % job.units ? min(past, job.end_of(first)) : first;
        at = -1;
    }
    __device__ __forceinline__ bool next(const Job& job, Item& item) {
        int begin, end;
        if (at < 0) {
            at = head_end;
            if (tail < past) {
                job.locate(tail, past, item), item.whole = false;
                return true;
            }
        }
        if (at < tail) {
            begin = at, end = at = job.end_of(at);
        } else if (first < min(head_end, tail)) {
            begin = first, end = head_end, head_end = first;
        } else {
            return false;
        }
        job.locate(begin, end, item);
        const int group = begin - begin % job.units;
        item.whole = group >= first && group + job.units <= past;
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
