// Work of decode_wide.cu: units of 256 columns of a group of row tiles, shared out evenly among the blocks in a row.
//
// Macros: QUANTS, TOKENS, MODE, SLICES and WARPS, see decode_wide.cu.
#pragma once
#include "../../formats/several.cuh"
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
static_assert(TOKENS % 16 == 0 && TOKENS <= 128 && WARPS % 4 == 0 && WARPS <= 16, "see decode_wide.cu");

using All = Formats<QUANTS>;

struct Weight {
    u64 tiles, out;
    int rows, stride, type;
};

// Row tiles of a block of a weight, from `first_tile` on, in a K slice. `before`: row tiles of the weights before.
struct Rows {
    float* out;
    int rows, stride, first_tile, before, slice;

    __device__ int row_tiles() const { return (rows + 15) / 16; }
};

// Units of one group and one K slice, or a part of them: columns `first` to `past`, counted in units.
struct Item : Rows {
    const u8 *tiles, *second;
    int type, first, past;
    bool continues, goes_on;  // another block has the beginning, or the end, of the slice
    bool whole;               // the block has all slices of the group, one after another
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
