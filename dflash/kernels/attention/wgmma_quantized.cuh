// Multiplies of a warpgroup with tiles of a quantized cache, scores = K Q^T and outputs += V^T P^T (wgmma, sm_90a only). The
// bytes become the left operands in registers; queries and weights are the right ones, in shared memory.
//
// Of each 16 elements of a key, lane t of four has elements 4 * t to 4 * t + 3 as one word of bytes or half of the bits of one,
// and multiplies them as columns 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9 in the order of `unpack`, so queries are stored in
// that order.
//
// Macros: those of work_item.cuh and quantized.cuh; TILE_KV, 64.
#pragma once
#include "../gpu/include/ptx.cuh"
#include "../gpu/include/wgmma.cuh"
#include "quantized.cuh"
#include "swizzle.cuh"
#include "work_item.cuh"

static_assert(TILE_KV == 64 && TILE_Q % 16 == 0 && TILE_Q <= 96, "tiles of 64 positions and of 16, 32, ... or 96 queries");

constexpr int FRAGMENTS = TILE_Q / 8;   // of 8 queries
constexpr int EACH = (BLOCKS + 3) / 4;  // blocks of 32 elements of the values that a warp multiplies
constexpr int OUTPUTS = 2 * EACH;       // multiplies of 64 elements

// With two blocks of 4 bits for each warp, a word of a lane has elements of both multiplies of one block.
constexpr bool WHOLE_WORDS = VALUE_BITS == 4 && EACH == 2;

// First of the four elements that outputs 2 * i and 2 * i + 1 of this lane belong to.
__device__ __forceinline__ int first_element(int i) {
    const int block = threadIdx.x % 128 / 32 * EACH, g = threadIdx.x % 32 / 4;
    return WHOLE_WORDS ? 32 * (block + g / 4) + 16 * i + g % 4 * 4 : 32 * (block + i) + 4 * g;
}

// Barrier of the threads of this warpgroup. Warpgroup i uses named barrier i + 1.
__device__ __forceinline__ void warpgroup_sync() { named_barrier_sync<128>((int)threadIdx.x / 128 + 1); }

// Copy queries, by the first THREADS threads; those that do not exist become zeros.
template <int THREADS>
__device__ __forceinline__ void store_queries(u32 tile, const u16* q, const QueryTile& queries) {
    constexpr int PAIRS = HEAD_DIM / 16;  // of lines of a row
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_Q * PAIRS; i += THREADS) {
        const int x = i / PAIRS, pair = i % PAIRS;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (x < queries.n) {
            const uint4* from = (const uint4*)(q + queries.at(x) * HEAD_DIM + pair * 16);
            a = from[0], b = from[1];
        }
        const uint2 of[4] = {Keys::in_order(a.x, a.y), Keys::in_order(a.z, a.w), Keys::in_order(b.x, b.y),
                             Keys::in_order(b.z, b.w)};
        st_shared_16(tile + swizzled<TILE_Q>(x, 2 * pair), make_uint4(of[0].x, of[1].x, of[2].x, of[3].x));
        st_shared_16(tile + swizzled<TILE_Q>(x, 2 * pair + 1), make_uint4(of[0].y, of[1].y, of[2].y, of[3].y));
    }
    fence_async_proxy();  // wgmma reads them through the async proxy
}

// Scores of a tile: s[n][e] of key 16 * warp + g + 8 * (e / 2) and query 8 * n + 2 * t + e % 2, for lane 4 * g + t.
__device__ __forceinline__ void multiply_keys(float (&s)[FRAGMENTS][4], const u8* keys, u32 queries) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const u8* rows = keys + (threadIdx.x % 128 / 32 * 16 + g) * Keys::HEAD;
    constexpr int WORDS = KEY_BITS / 4;  // of a block
    u32 words[2][WORDS][2], a[2][2][4], scales[2][4];  // a: halves of 16 elements, keys g and g + 8
    UNROLL for (int h = 0; h < 2; ++h) *(uint4*)scales[h] = *(const uint4*)(rows + 8 * h * Keys::HEAD + Keys::VALUES);
    const auto load = [&](int n) {
        UNROLL for (int j = 0; j < WORDS; ++j)
            UNROLL for (int h = 0; h < 2; ++h)
                words[n % 2][j][h] = *(const u32*)(rows + 8 * h * Keys::HEAD + Keys::BLOCK * n + 16 * j + 4 * t);
    };
    load(0);
    UNROLL for (int n = 0; n < BLOCKS; ++n) {
        if (n + 1 < BLOCKS) load(n + 1);
        UNROLL for (int h = 0; h < 2; ++h) {
            const u32 scale = __byte_perm(scales[h][n / 2], 0, n % 2 ? 0x3232 : 0x1010);
            UNROLL for (int j = 0; j < 2; ++j)
                Keys::unpack(words[n % 2][j % WORDS][h], j, scale, a[n % 2][j][h], a[n % 2][j][2 + h]);
        }
        wgmma_fence_operand(s);
        wgmma_fence();
        UNROLL for (int j = 0; j < 2; ++j)
            wgmma_rs(s, a[n % 2][j], wgmma_descriptor(queries + n / 2 * (TILE_Q * 128) + n % 2 * 64 + 32 * j), n + j > 0);
        wgmma_commit_group();
        wgmma_wait_group<1>();  // the operands before these may be overwritten
    }
    wgmma_wait_group<0>();
    wgmma_fence_operand(s);
}

// Zero the scales of a tile's values from `written` on, which are not in the cache: a weight of zero times NaN is NaN.
__device__ __forceinline__ void clear_values(u8* values, int written) {
    const int row = threadIdx.x % 128;
    if (row >= written && row < TILE_KV) *(uint4*)(values + row * Values::HEAD + Values::VALUES) = make_uint4(0, 0, 0, 0);
    fence_async_proxy();  // the next copy overwrites them
    warpgroup_sync();     // all zeros are stored
}

// acc += values @ weights of a tile. acc[2 * i + m][n][e]: element first_element(i) + 2 * m + e / 2 of query 8 * n + 2 * t +
// e % 2.
__device__ __forceinline__ void multiply_values(float (&acc)[OUTPUTS][FRAGMENTS][4], const u8* values, u32 weights) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, first = threadIdx.x % 128 / 32 * EACH;
    const u8* rows = values + 2 * t * Values::HEAD;
    constexpr int STEPS = TILE_KV / 16 * EACH, TURN = WHOLE_WORDS ? EACH : 1;  // steps with the same words
    constexpr bool SHIFTS = WHOLE_WORDS && TILE_Q > 64;  // upper halves, whose constants would take the last registers
    u32 words[2][4], scales[2][4], a[2][2][4];  // of positions 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9
    const auto load = [&](int step) {
        const int k = step / EACH, i = step % EACH, n = first + (WHOLE_WORDS ? g / 4 : i);
        const bool exists = BLOCKS % 4 == 0 || n < BLOCKS;
        UNROLL for (int r = 0; r < 4; ++r) {
            const u8* row = rows + (16 * k + r % 2 + r / 2 * 8) * Values::HEAD;
            if (i == 0 || !WHOLE_WORDS) {
                u32 word = 0;
                if (exists) word = *(const u32*)(row + Values::BLOCK * n + (Values::BYTES ? g : g % 4) * 4);
                words[step / TURN % 2][r] = Values::BYTES || WHOLE_WORDS ? word : word >> g / 4 * 4;
            }
            if (i == 0) {
                u32 scale = 0;
                if (exists) {
                    const u8* at = row + Values::VALUES + 2 * n;
                    scale = EACH == 2 && !WHOLE_WORDS ? *(const u32*)at : *(const u16*)at;
                }
                scales[k % 2][r] = scale;
            }
        }
    };
    load(0);
    UNROLL for (int step = 0; step < STEPS; ++step) {
        const int k = step / EACH, i = step % EACH, shift = SHIFTS ? 4 * i : 0;
        if (step + 1 < STEPS) load(step + 1);
        u32(&own)[2][4] = a[step % 2];
        UNROLL for (int h = 0; h < 2; ++h) {
            const u32 x = words[step / TURN % 2][2 * h], y = words[step / TURN % 2][2 * h + 1];
            const u32 scale =
                __byte_perm(scales[k % 2][2 * h], scales[k % 2][2 * h + 1], i && !WHOLE_WORDS ? 0x7632 : 0x5410);
            const u32 low = Values::pairs_of_low(x, y) >> shift, high = Values::pairs_of_high(x, y) >> shift;
            Values::unpack(low, SHIFTS ? 0 : i, scale, own[0][2 * h], own[0][2 * h + 1]);
            Values::unpack(high, SHIFTS ? 0 : i, scale, own[1][2 * h], own[1][2 * h + 1]);
        }
        UNROLL for (int m = 0; m < 2; ++m) wgmma_fence_operand(acc[2 * i + m]);
        wgmma_fence();
        UNROLL for (int m = 0; m < 2; ++m) wgmma_rs(acc[2 * i + m], own[m], wgmma_descriptor(weights + 32 * k), 1);
        wgmma_commit_group();
        wgmma_wait_group<1>();
    }
    wgmma_wait_group<0>();
    UNROLL for (int i = 0; i < OUTPUTS; ++i) wgmma_fence_operand(acc[i]);
}
