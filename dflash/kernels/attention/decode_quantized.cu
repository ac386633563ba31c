// Attention of pending rows (decode) over a quantized cache: partial results of each split (split-KV); `combine` follows. The
// formula is that of online_softmax.cuh with the values of quantized.cuh.
//
// Scores are K Q^T and outputs V^T P^T: keys and values are the left operands of mma.sync, so that their bytes become
// float16 in registers, and the queries are the columns. For each tile of 64 positions a warp multiplies 16 keys by SPAN
// elements of a head, then turns the scores of some queries into weights, then multiplies the values of 32 elements by all
// weights. The keys of a tile and the values of the previous one are multiplied between the same barriers.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block 256,
// shared memory STAGES * STAGE_BYTES + Layout::BYTES. Macros: HEAD_DIM, a multiple of 32 up to 256; GROUP_SIZE, query heads
// that share a KV head; KV_HEADS; KEY_BITS, VALUE_BITS; TILE_KV, 64; TILE_Q, a multiple of 8; STAGES, tiles of keys or values
// in shared memory; MAX_SPLITS, capacity of splits of a row.
// Bytes: KV_HEADS * (Keys::HEAD + Values::HEAD) for each position, and 4 * HEAD_DIM for each query and split.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "decode_scheduler.cuh"
#include "partial_layout.cuh"
#include "quantized.cuh"

#ifndef STAGES
#error "STAGES must be defined"
#endif
static_assert(TILE_KV == 64 && TILE_Q % 8 == 0 && STAGES >= 3, "tiles of 64 positions and of 8, 16, ... queries");

constexpr int THREADS = 256, WARPS = 8, SPAN = 128, SPANS = (HEAD_DIM + SPAN - 1) / SPAN;
constexpr int COLUMNS = TILE_Q / 8;                    // tiles of 8 queries
constexpr int SCORE_COLUMNS = COLUMNS < 4 ? COLUMNS : 4;  // of these, scores that a warp sums at a time
static_assert(COLUMNS % SCORE_COLUMNS == 0, "TILE_Q must be 8, 16, 24 or a multiple of 32");
constexpr int STAGE_BYTES = TILE_KV * LARGER_HEAD;

// Shared memory after the stages, in bytes from its start. Queries are B fragments of two steps of mma: (COLUMNS, SPANS, 4,
// 32 lanes, 16 bytes). Scores are float32 (SPANS, TILE_Q, SCORE_PITCH), weights float16 (TILE_Q, WEIGHT_PITCH bytes),
// factors of earlier sums and largest scores float32 (TILE_Q).
struct Layout {
    static constexpr int SCORE_PITCH = TILE_KV + 4, WEIGHT_PITCH = 2 * TILE_KV + 16;
    static constexpr int QUERIES = 0, SCORES = COLUMNS * SPANS * 2048;
    static constexpr int WEIGHTS = SCORES + 4 * SPANS * TILE_Q * SCORE_PITCH, RESCALE = WEIGHTS + TILE_Q * WEIGHT_PITCH;
    static constexpr int LARGEST = RESCALE + 4 * TILE_Q, BYTES = LARGEST + 4 * TILE_Q;
};

// Start to copy a tile of keys or values to shared memory. Positions that are not in the cache become zeros.
template <class Format>
__device__ __forceinline__ void fetch_tile(u32 to, const u8* cache, const KvRange& kv, int position) {
    constexpr int LINES = Format::HEAD / 16;
    const size_t row = (size_t)__ldg(kv.pages + position / PAGE) * PAGE + position % PAGE;
    const u8* from = cache + (row * KV_HEADS + kv.head) * Format::HEAD;
#pragma unroll 1
    for (int line = threadIdx.x; line < TILE_KV * LINES; line += THREADS) {
        const int key = line / LINES;
        cp_async_16_zfill(to + line * 16, from + (size_t)key * (KV_HEADS * Format::HEAD) + line % LINES * 16,
                          position + key < kv.written);
    }
}

// Start to copy tile n of the order K0 K1 V0 K2 V1 ... to stage n % STAGES.
__device__ __forceinline__ void fetch(u8* stages, const u8* k, const u8* v, const KvRange& kv, int n) {
    const bool values = n > 0 && n % 2 == 0;
    const int i = kv.begin + (values ? n / 2 - 1 : (n + 1) / 2), position = i * TILE_KV;
    if (i < kv.end) {
        const u32 to = smem_address(stages + n % STAGES * STAGE_BYTES);
        if (KEY_BITS == VALUE_BITS || !values) fetch_tile<Keys>(to, values ? v : k, kv, position);
        else fetch_tile<Values>(to, v, kv, position);
    }
    cp_async_commit_group();
}

// Copy the queries of a tile. Queries and elements that do not exist become zeros.
__device__ __forceinline__ void store_queries(u8* to, const u16* q, const QueryTile& queries) {
#pragma unroll 2
    for (int n = threadIdx.x; n < TILE_Q * SPANS * 16; n += THREADS) {
        const int x = n / (SPANS * 16), line = n % (SPANS * 16);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (x < queries.n && line < HEAD_DIM / 8) value = *(const uint4*)(q + queries.at(x) * HEAD_DIM + line * 8);
        const uint2 low = Keys::in_order(value.x, value.y), high = Keys::in_order(value.z, value.w);
        const int slot = ((x / 8 * SPANS + line / 16) * 4 + line % 4) * 32 + x % 8 * 4 + line / 4 % 4;
        *(uint4*)(to + slot * 16) = make_uint4(low.x, low.y, high.x, high.y);
    }
}

// Store the scores of all queries with 16 keys, summed over a span of elements. Lane 4 * g + t has block t of the span of
// keys g and g + 8, so step j multiplies elements 4 * j to 4 * j + 3 of four blocks, in the order of `unpack`.
__device__ __forceinline__ void multiply_keys(const u8* keys, u8* memory) {
    const int lane = threadIdx.x % 32, first = threadIdx.x / 32 % 4 * 16;
    const int span = threadIdx.x / 128, block = span * 4 + lane % 4;
    if (span >= SPANS) return;
    constexpr int LINES = Keys::BLOCK / 16;
    uint4 words[2][LINES];  // blocks of both keys
    u32 scales[2];
    UNROLL for (int h = 0; h < 2; ++h) {
        const u8* key = keys + (first + lane / 4 + 8 * h) * Keys::HEAD;
        const bool exists = HEAD_DIM % SPAN == 0 || block < BLOCKS;
        UNROLL for (int i = 0; i < LINES; ++i)
            words[h][i] = exists ? *(const uint4*)(key + Keys::BLOCK * block + 16 * i) : make_uint4(0, 0, 0, 0);
        scales[h] = exists ? both(*(const u16*)(key + Keys::VALUES + 2 * block)) : 0;
    }
    const u8* queries = memory + Layout::QUERIES + (span * 128 + lane) * 16;
    float* scores = (float*)(memory + Layout::SCORES) + first + lane / 4;
    scores += (span * TILE_Q + lane % 4 * 2) * Layout::SCORE_PITCH;
#pragma unroll 1
    for (int start = 0; start < COLUMNS; start += SCORE_COLUMNS) {
        float s[SCORE_COLUMNS][4];
        clear(s);
        UNROLL for (int pair = 0; pair < 4; ++pair) {
            u32 a[2][4];
            UNROLL for (int j = 0; j < 2; ++j)
                UNROLL for (int h = 0; h < 2; ++h) {
                    const uint4 line = words[h][pair / 2 % LINES];
                    const u32 word = pair % 2 ? (j ? line.w : line.z) : (j ? line.y : line.x);
                    Keys::unpack(word, pair / 2, scales[h], a[j][h], a[j][2 + h]);
                }
            UNROLL for (int c = 0; c < SCORE_COLUMNS; ++c) {
                const uint4 b = *(const uint4*)(queries + ((start + c) * SPANS * 4 + pair) * 512);
                mma_m16n8k16(s[c], a[0], b.x, b.y);
                mma_m16n8k16(s[c], a[1], b.z, b.w);
            }
        }
        UNROLL for (int c = 0; c < SCORE_COLUMNS; ++c)
            UNROLL for (int e = 0; e < 4; ++e)
                scores[(8 * (start + c) + e % 2) * Layout::SCORE_PITCH + e / 2 * 8] = s[c][e];
    }
}

// Turn the scores of queries x = warp, warp + WARPS, ... with the tile at `position` into weights. `sum`: sums of the
// weights of a lane's positions.
__device__ __forceinline__ void soften(float (&sum)[COLUMNS], int position, const Item& item, const int* limits,
                                       const u64* above, u8* memory) {
    const float scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, committed = item.kv.committed;
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
        const int x = warp + WARPS * c;
        if (x >= item.queries.n) break;
        const float* scores = (const float*)(memory + Layout::SCORES) + x * Layout::SCORE_PITCH + 2 * lane;
        float2 s = *(const float2*)scores;
        if (SPANS == 2) {
            const float2 rest = *(const float2*)(scores + TILE_Q * Layout::SCORE_PITCH);
            s.x = __fadd_rn(s.x, rest.x), s.y = __fadd_rn(s.y, rest.y);
        }
        if (position + TILE_KV > committed) {
            const int limit = limits[x / GROUP_SIZE], at = position + 2 * lane;
            const u64 bits = above[x / GROUP_SIZE];
            const auto visible = [&](int p) {
                return p < limit || (p >= committed && p - committed < PENDING && bits >> (p - committed) & 1);
            };
            if (!visible(at)) s.x = MINUS_INFINITY;
            if (!visible(at + 1)) s.y = MINUS_INFINITY;
        }
        float& max_score = ((float*)(memory + Layout::LARGEST))[x];
        const float earlier = max_score, largest = fmaxf(earlier, warp_max(fmaxf(s.x, s.y)));
        const float base = largest == MINUS_INFINITY ? 0.0f : __fmul_rn(largest, scale);
        const float rescale = exp2_approx(__fsub_rn(__fmul_rn(earlier, scale), base));
        s.x = exp2_approx(__fmaf_rn(s.x, scale, -base)), s.y = exp2_approx(__fmaf_rn(s.y, scale, -base));
        sum[c] = __fmaf_rn(sum[c], rescale, __fadd_rn(s.x, s.y));
        *(u32*)(memory + Layout::WEIGHTS + x * Layout::WEIGHT_PITCH + 4 * lane) = pack_half2(s.x, s.y);
        __syncwarp();  // all lanes have read the earlier score
        if (lane == 0) max_score = largest, ((float*)(memory + Layout::RESCALE))[x] = rescale;
    }
}

// acc = acc * rescale + values @ weights, for block `warp` of the values and all queries. Lane 4 * g + t has elements 4 * g
// to 4 * g + 3 of the block at positions 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9 of each step.
__device__ __forceinline__ void multiply_values(float (&acc)[2][COLUMNS][4], const u8* values, const u8* memory) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (BLOCKS < WARPS && warp >= BLOCKS) return;
    const int shift = Values::BYTES ? 0 : lane / 16 * 4;  // of 4 bits, lanes 16 to 31 have upper halves
    const u8* own = values + lane % 4 * 2 * Values::HEAD + Values::BLOCK * warp + lane / 4 * 4 % Values::BLOCK;
    const u8* scales = values + lane % 4 * 2 * Values::HEAD + Values::VALUES + 2 * warp;
    const u32 weights = smem_address(memory + Layout::WEIGHTS) + lane % 8 * Layout::WEIGHT_PITCH + lane / 8 * 16;
#pragma unroll(COLUMNS <= 4 ? 2 : 1)
    for (int half = 0; half < 2; ++half) {
        u32 a[2][2][4];  // two steps, two tiles of 16 elements
        UNROLL for (int j = 0; j < 2; ++j)
            UNROLL for (int h = 0; h < 2; ++h) {
                const int at = (32 * half + 16 * j + 8 * h) * Values::HEAD;
                const u32 x = *(const u32*)(own + at), y = *(const u32*)(own + at + Values::HEAD);
                const u32 scale = *(const u16*)(scales + at) | (u32) * (const u16*)(scales + at + Values::HEAD) << 16;
                Values::unpack(Values::pairs_of_low(x, y) >> shift, 0, scale, a[j][0][2 * h], a[j][0][2 * h + 1]);
                Values::unpack(Values::pairs_of_high(x, y) >> shift, 0, scale, a[j][1][2 * h], a[j][1][2 * h + 1]);
            }
        UNROLL for (int c = 0; c < COLUMNS; ++c) {
            u32 b[4];
            ldmatrix_x4(b, weights + 8 * c * Layout::WEIGHT_PITCH + 64 * half);
            if (half == 0) {
                const float2 rescale = *(const float2*)(memory + Layout::RESCALE + 4 * (8 * c + lane % 4 * 2));
                UNROLL for (int m = 0; m < 2; ++m)
                    UNROLL for (int e = 0; e < 4; ++e) acc[m][c][e] = __fmul_rn(acc[m][c][e], e % 2 ? rescale.y : rescale.x);
            }
            UNROLL for (int m = 0; m < 2; ++m) {
                mma_m16n8k16(acc[m][c], a[0][m], b[0], b[1]);
                mma_m16n8k16(acc[m][c], a[1][m], b[2], b[3]);
            }
        }
    }
}

// Store the outputs of an item in the order of partial_layout.cuh, and the statistics of its queries.
__device__ __forceinline__ void store(const Item& item, const float (&acc)[2][COLUMNS][4], const float (&sum)[COLUMNS],
                                      const u8* memory, float* partial, float* stats) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, d = 32 * warp + lane / 4 * 4;
    const auto at = [&](int x) {
        return partial_at(item.queries.row + x / GROUP_SIZE, item.queries.head, item.split);
    };
    const auto needed = [&](int x) {
        return x < item.queries.n && item.split < n_splits_of(item.kv.committed + item.own + x / GROUP_SIZE);
    };
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
        UNROLL for (int e = 0; e < 2; ++e) {
            const int x = 8 * c + lane % 4 * 2 + e;
            if (!needed(x) || d >= HEAD_DIM) continue;
            *(float4*)(partial + at(x) * (GROUP_SIZE * HEAD_DIM) + (d / 8 * GROUP_SIZE + x % GROUP_SIZE) * 8 + d % 8) =
                make_float4(acc[0][c][e], acc[0][c][2 + e], acc[1][c][e], acc[1][c][2 + e]);
        }
        const int x = warp + WARPS * c;
        const float total = warp_sum(sum[c]);
        if (lane == 0 && needed(x)) {
            const float largest = ((const float*)(memory + Layout::LARGEST))[x];
            *(float2*)(stats + 2 * (at(x) * GROUP_SIZE + x % GROUP_SIZE)) = make_float2(largest, total);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode_quantized(const unsigned short* q, const unsigned char* k, const unsigned char* v, const int* counts,
                 const int* first, const int* parent, const int* depth, const int* length, const int* pages, int max_pages,
                 int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ __align__(16) u8 stages[];
    __shared__ Batch batch;
    __shared__ Item item;
    __shared__ int limits[MAX_ROWS];
    __shared__ u64 above[MAX_ROWS];
    launch_dependent_grids();
    u8* memory = stages + STAGES * STAGE_BYTES;
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    if (threadIdx.x == 0) item.sequence = item.before = 0;
    u32* zeroed = (u32*)(memory + Layout::WEIGHTS);  // weights and factors of queries that do not exist stay zero
    for (int n = threadIdx.x; n < (Layout::BYTES - Layout::WEIGHTS) / 4; n += THREADS) zeroed[n] = 0;
    wait_on_dependent_grids();
    for (int n = blockIdx.x;; n += gridDim.x) {
        __syncthreads();  // the previous item and its masks are no longer read
        if (threadIdx.x == 0) find(n, item, batch, pages, max_pages);
        __syncthreads();  // the item is stored
        if (item.queries.n == 0) break;
#pragma unroll 1
        for (int i = 0; i < STAGES; ++i) fetch(stages, k, v, item.kv, i);
        if (threadIdx.x < item.rows) read_mask(item, threadIdx.x, batch, limits, above);
        store_queries(memory + Layout::QUERIES, q, item.queries);
        if (threadIdx.x < TILE_Q) ((float*)(memory + Layout::LARGEST))[threadIdx.x] = MINUS_INFINITY;
        float acc[2][COLUMNS][4], sum[COLUMNS];
        clear(acc);
        UNROLL for (int c = 0; c < COLUMNS; ++c) sum[c] = 0.0f;
        const int tiles = item.kv.end - item.kv.begin;
#pragma unroll 1
        for (int i = 0; i < tiles; ++i) {
            cp_async_wait_group<STAGES - 2>();
            __syncthreads();  // the keys of this tile, the values and weights of the previous one are visible
            if (i > 0) multiply_values(acc, stages + 2 * i % STAGES * STAGE_BYTES, memory);
            multiply_keys(stages + max(2 * i - 1, 0) % STAGES * STAGE_BYTES, memory);
            __syncthreads();  // the scores are complete, and the stages that are refilled below were read
#pragma unroll 1
            for (int n = max(2 * i - 1, 0); n <= 2 * i; ++n) fetch(stages, k, v, item.kv, STAGES + n);
            soften(sum, (item.kv.begin + i) * TILE_KV, item, limits, above, memory);
        }
        cp_async_wait_group<0>();
        __syncthreads();  // the last values and weights are visible
        multiply_values(acc, stages + 2 * tiles % STAGES * STAGE_BYTES, memory);
        store(item, acc, sum, memory, partial, stats);
    }
}
