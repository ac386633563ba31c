// Attention of up to TILE_Q pending queries of a KV head (decode) over a q8_0 cache on Hopper, each warp alone: partial results
// of each split (split-KV); `combine` follows. The formula is that of online_softmax.cuh with the values of q8_0.cuh, for
// each part (parts.cuh) of a split.
//
// A warp takes a part of a split, through a ring of its own that bulk copies fill: of each tile of 64 positions 4 copies of
// keys, then 4 of values. Scores are K Q^T and outputs V^T P^T, so that bytes become the left operands of mma.sync in
// registers, and queries are the columns. Warps meet once, at the end of an item, where the parts are added in order. Products
// and sums follow each other as in decode_q8_0_hopper.cu, so that rows have the same bits.
//
// Blocks take work items in turn, see decode_scheduler.cuh. Grid: any size, one block a multiprocessor is best. Block 32 *
// PARTS, shared memory PARTS * STAGES * COPY_BYTES + TILE_Q * QUERY_PITCH. Macros: HEAD_DIM, a multiple of 32 up to 256;
// GROUP_SIZE, query heads that share a KV head; KV_HEADS; TILE_KV, 64; TILE_Q, 8 or 16; STAGES, copies in a warp's ring;
// MAX_SPLITS, capacity of splits of a row.
// Bytes: 2 * KV_HEADS * (HEAD_DIM + 16) for each position, and 4 * HEAD_DIM for each query and split.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/sm90.cuh"
#include "../gpu/include/tma.cuh"
#include "partial_layout.cuh"
#include "parts.cuh"
#include "q8_0.cuh"

#ifndef STAGES
#error "STAGES must be defined"
#endif
static_assert(TILE_KV == 64 && TILE_Q % 8 == 0 && STAGES >= 4, "tiles of 64 positions and of 8 or 16 queries");

constexpr int THREADS = 32 * PARTS, QUERY_COLUMNS = TILE_Q / 8;
constexpr int ROWS = 16, COPIES = TILE_KV / ROWS, COPY_BYTES = ROWS * HEAD_BYTES, RING_BYTES = STAGES * COPY_BYTES;
constexpr int QUERY_PITCH = 2 * HEAD_DIM + 32;  // bytes from query to query in shared memory: no bank conflicts
constexpr int SUM_PITCH = HEAD_DIM + 4;         // floats from query to query of the sums of a warp: no bank conflicts
static_assert(PARTS * RING_BYTES >= PARTS * TILE_Q * SUM_PITCH * 4, "the sums of all warps fit the rings");
static_assert(COPY_BYTES % 128 == 0, "copies begin at multiples of 128 bytes");

// Copies of a part to a warp's ring, in order. All lanes have the same state; lane 0 starts the copies.
struct Ring {
    u32 stages, barriers;  // shared addresses
    int stage, phase;      // of the next copy that is read
    int filled;            // stage of the next copy that is started
    int started, copies;   // of the part

    __device__ __forceinline__ void begin(const KvRange& part) { started = 0, copies = (part.end - part.begin) * 2 * COPIES; }

    __device__ __forceinline__ void start(const TensorMap& k, const TensorMap& v, const KvRange& part) {
        if (started >= copies) return;
        const int tile = part.begin + started / (2 * COPIES), position = tile * TILE_KV + started % COPIES * ROWS;
        if (threadIdx.x % 32 == 0) {
            const int row = __ldg(part.pages + position / PAGE) * PAGE + position % PAGE;
            const u32 full = barriers + 8 * filled, to = stages + filled * COPY_BYTES;
            mbarrier_arrive_expect_tx(full, COPY_BYTES);
            tma_load_2d(to, started / COPIES % 2 ? v : k, part.head * (HEAD_BYTES / 4), row, full);
        }
        ++started;
        if (++filled == STAGES) filled = 0;
    }

    // Wait for the next copy; returns its offset in the ring.
    __device__ __forceinline__ int wait() {
        mbarrier_wait(barriers + 8 * stage, phase);
        const int offset = stage * COPY_BYTES;
        if (++stage == STAGES) stage = 0, phase ^= 1;
        return offset;
    }
};

// Copy the queries of an item. Queries that do not exist become zeros.
__device__ __forceinline__ void store_queries(u8* to, const u16* q, const QueryTile& queries) {
    for (int n = threadIdx.x; n < TILE_Q * (HEAD_DIM / 8); n += THREADS) {
        const int x = n / (HEAD_DIM / 8), line = n % (HEAD_DIM / 8);
        uint4 value = make_uint4(0, 0, 0, 0);
        if (x < queries.n) value = *(const uint4*)(q + queries.at(x) * HEAD_DIM + line * 8);
        *(uint4*)(to + x * QUERY_PITCH + line * 16) = value;
    }
}

// Scores of the 64 keys of a tile, `keys[i]` those of copy i. s[i][c][e]: of key 16 * i + g + 8 * (e / 2) and query 8 * c +
// 2 * t + e % 2, for lane 4 * g + t. The lane has word t of each 16 elements; see unpack_tiles.cuh.
__device__ __forceinline__ void multiply_keys(float (&s)[COPIES][QUERY_COLUMNS][4], const u8* const (&keys)[COPIES],
                                              const u8* queries) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int i = 0; i < COPIES; ++i) clear(s[i]);
#pragma unroll(QUERY_COLUMNS == 1 ? 2 : 1)
    for (int n = 0; n < BLOCKS; ++n) {
        u32 scales[COPIES][2];
        UNROLL for (int i = 0; i < COPIES; ++i)
            UNROLL for (int h = 0; h < 2; ++h)
                scales[i][h] = both(*(const u16*)(keys[i] + (g + 8 * h) * HEAD_BYTES + HEAD_DIM + 2 * n));
        UNROLL for (int j = 0; j < 2; ++j) {
            uint2 b[QUERY_COLUMNS];
            UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
                b[c] = *(const uint2*)(queries + (8 * c + g) * QUERY_PITCH + 64 * n + 32 * j + 8 * t);
            UNROLL for (int i = 0; i < COPIES; ++i) {
                u32 a[4];
                UNROLL for (int h = 0; h < 2; ++h) {
                    const u32 word = *(const u32*)(keys[i] + (g + 8 * h) * HEAD_BYTES + 32 * n + 16 * j + 4 * t);
                    a[h] = low_values(word, scales[i][h]), a[2 + h] = high_values(word, scales[i][h]);
                }
                UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c) mma_m16n8k16(s[i][c], a, b[c].x, b[c].y);
            }
        }
    }
}

// acc += values @ weights of the 16 positions from `position` on; values from `written` on are zero. acc[n][m][c][e]: element
// 32 * n + 4 * g + 2 * m + e / 2 of query 8 * c + 2 * t + e % 2.
__device__ __forceinline__ void multiply_values(float (&acc)[BLOCKS][2][QUERY_COLUMNS][4], const u32 (&p)[QUERY_COLUMNS][2],
                                                const u8* values, int position, int written) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const u8* rows = values + 2 * t * HEAD_BYTES;
    u32 scales[4][(BLOCKS + 1) / 2];  // of positions 2 * t, 2 * t + 1, 2 * t + 8 and 2 * t + 9, two blocks a word
    UNROLL for (int i = 0; i < 4; ++i) {
        const int row = i % 2 + i / 2 * 8;
        UNROLL for (int n = 0; n < (BLOCKS + 1) / 2; ++n)
            scales[i][n] = *(const u32*)(rows + row * HEAD_BYTES + HEAD_DIM + 4 * n);
        if (position + ROWS > written) {  // what is stored there may be NaN
            UNROLL for (int n = 0; n < (BLOCKS + 1) / 2; ++n)
                if (position + 2 * t + row >= written) scales[i][n] = 0;
        }
    }
    UNROLL for (int n = 0; n < BLOCKS; ++n) {
        u32 a[2][4];
        UNROLL for (int h = 0; h < 2; ++h) {
            const u32 x = *(const u32*)(rows + 8 * h * HEAD_BYTES + 32 * n + 4 * g);
            const u32 y = *(const u32*)(rows + (8 * h + 1) * HEAD_BYTES + 32 * n + 4 * g);
            const u32 scale = __byte_perm(scales[2 * h][n / 2], scales[2 * h + 1][n / 2], n % 2 ? 0x7632 : 0x5410);
            const u32 low = __byte_perm(x, y, 0x5140), high = __byte_perm(x, y, 0x7362);
            a[0][2 * h] = low_values(low, scale), a[0][2 * h + 1] = high_values(low, scale);
            a[1][2 * h] = low_values(high, scale), a[1][2 * h + 1] = high_values(high, scale);
        }
        UNROLL for (int m = 0; m < 2; ++m)
            UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c) mma_m16n8k16(acc[n][m][c], a[m], p[c][0], p[c][1]);
    }
}

// State of the softmax of a lane for queries 8 * c + 2 * t + e; sums of the weights of keys g and g + 8 of each 16 of a tile.
struct Softmax {
    BaseScore base[QUERY_COLUMNS][2];
    float sum[COPIES][QUERY_COLUMNS][2];
};

__device__ __forceinline__ void apply_mask(float (&s)[COPIES][QUERY_COLUMNS][4], int position, int committed,
                                           const int* limits, const u64* above) {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int row = min((8 * c + 2 * t + e) / GROUP_SIZE, MAX_ROWS - 1), limit = limits[row];
            const u64 bits = above[row];
            UNROLL for (int i = 0; i < COPIES; ++i)
                UNROLL for (int h = 0; h < 2; ++h) {
                    const int p = position + 16 * i + 8 * h + g, own = p - committed;
                    const bool visible = p < limit || (own >= 0 && own < PENDING && bits >> own & 1);
                    if (!visible) s[i][c][2 * h + e] = MINUS_INFINITY;
                }
        }
}

// Turn the scores of a tile into weights, and rescale the sums of earlier tiles if need be.
__device__ __forceinline__ void soften(float (&s)[COPIES][QUERY_COLUMNS][4], Softmax& softmax,
                                       float (&acc)[BLOCKS][2][QUERY_COLUMNS][4]) {
    float largest[QUERY_COLUMNS][2];
    bool changes = false;
    UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
        UNROLL for (int e = 0; e < 2; ++e) {
            largest[c][e] = fmaxf(s[0][c][e], s[0][c][2 + e]);
            UNROLL for (int i = 1; i < COPIES; ++i) largest[c][e] = fmaxf(largest[c][e], fmaxf(s[i][c][e], s[i][c][2 + e]));
            changes |= softmax.base[c][e].must_change(largest[c][e]);
        }
    if (__any_sync(~0u, changes)) {
        float factor[QUERY_COLUMNS][2];
        UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
            UNROLL for (int e = 0; e < 2; ++e) {
                float most = largest[c][e];
                UNROLL for (int by = 4; by < 32; by *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, by));
                factor[c][e] = softmax.base[c][e].change(most);
                UNROLL for (int i = 0; i < COPIES; ++i) softmax.sum[i][c][e] = __fmul_rn(softmax.sum[i][c][e], factor[c][e]);
            }
        UNROLL for (int n = 0; n < BLOCKS; ++n)
            UNROLL for (int m = 0; m < 2; ++m)
                UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
                    UNROLL for (int e = 0; e < 4; ++e) acc[n][m][c][e] = __fmul_rn(acc[n][m][c][e], factor[c][e % 2]);
    }
    UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
        UNROLL for (int e = 0; e < 2; ++e) {
            const float shift = softmax.base[c][e].shift();
            UNROLL for (int i = 0; i < COPIES; ++i) {
                UNROLL for (int h = 0; h < 2; ++h) s[i][c][2 * h + e] = BaseScore::weight(s[i][c][2 * h + e], shift);
                softmax.sum[i][c][e] = __fadd_rn(softmax.sum[i][c][e], __fadd_rn(s[i][c][e], s[i][c][2 + e]));
            }
        }
}

// Attend to a part, of which the ring has the first copies.
__device__ __forceinline__ void attend(Ring& ring, const u8* own, const TensorMap& k, const TensorMap& v, const KvRange& part,
                                       const u8* queries, const int* limits, const u64* above,
                                       float (&acc)[BLOCKS][2][QUERY_COLUMNS][4], Softmax& softmax) {
#pragma unroll 1
    for (int tile = part.begin; tile < part.end; ++tile) {
        const int position = tile * TILE_KV;
        const u8* keys[COPIES];
        float s[COPIES][QUERY_COLUMNS][4];
        UNROLL for (int i = 0; i < COPIES; ++i) keys[i] = own + ring.wait();
        multiply_keys(s, keys, queries);
        __syncwarp();  // all lanes have read the keys
        UNROLL for (int i = 0; i < COPIES; ++i) ring.start(k, v, part);
        if (position + TILE_KV > part.committed) apply_mask(s, position, part.committed, limits, above);
        soften(s, softmax, acc);
        UNROLL for (int i = 0; i < COPIES; ++i) {
            u32 p[QUERY_COLUMNS][2];
            UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
                UNROLL for (int h = 0; h < 2; ++h) p[c][h] = transposed_8x8(pack_half2(s[i][c][2 * h], s[i][c][2 * h + 1]));
            const u8* values = own + ring.wait();
            multiply_values(acc, p, values, position + ROWS * i, part.written);
            __syncwarp();  // all lanes have read the values
            ring.start(k, v, part);
        }
    }
}

// Add the parts in order, and store the result for `combine`. `sums`: (PARTS, TILE_Q, SUM_PITCH); `of_parts`: base score and
// sum of weights.
__device__ __forceinline__ void store(const Item& item, const float* sums, const float2 (&of_parts)[PARTS][TILE_Q],
                                      float* partial, float* stats) {
    const int lane = threadIdx.x % 32;
    for (int x = threadIdx.x / 32; x < item.queries.n; x += PARTS) {
        const int row = x / GROUP_SIZE;
        if (item.split >= n_splits_of(item.kv.committed + item.own + row)) continue;
        constexpr int LINES = HEAD_DIM / 4, EACH = (LINES + 31) / 32;  // lines of 16 bytes; those of a lane
        float4 values[EACH];
        PartSums all;
        all.clear();
        UNROLL for (int half = 0; half < 2; ++half) {
            float4 latest[EACH];
            UNROLL for (int i = 0; i < EACH; ++i) latest[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            PartSums of_half;
            of_half.clear();
            for (int p = half * HALF; p < (half + 1) * HALF; ++p) {
                const KvRange part = part_of(item, p);
                if (part.begin == part.end) continue;
                of_half.add(of_parts[p][x].x, of_parts[p][x].y);
                const float4* own = (const float4*)(sums + (p * TILE_Q + x) * SUM_PITCH);
                UNROLL for (int i = 0; i < EACH; ++i)
                    if (lane + 32 * i < LINES) latest[i] = of_half.values(latest[i], own[lane + 32 * i]);
            }
            if (half == 0) {
                all = of_half;
                UNROLL for (int i = 0; i < EACH; ++i) values[i] = latest[i];
            } else {
                all.add(of_half.largest, of_half.total);
                UNROLL for (int i = 0; i < EACH; ++i) values[i] = all.values(values[i], latest[i]);
            }
        }
        const size_t at = partial_at(item.queries.row + row, item.queries.head, item.split);
        float* to = partial + at * (GROUP_SIZE * HEAD_DIM) + x % GROUP_SIZE * 8;
        UNROLL for (int i = 0; i < EACH; ++i) {
            const int line = lane + 32 * i;
            if (line < LINES) *(float4*)(to + line / 2 * (8 * GROUP_SIZE) + line % 2 * 4) = values[i];
        }
        if (lane == 0) *(float2*)(stats + 2 * (at * GROUP_SIZE + x % GROUP_SIZE)) = make_float2(all.largest, all.total);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
decode_q8_0_warps(const unsigned short* q, const __grid_constant__ TensorMap k, const __grid_constant__ TensorMap v,
                  const int* counts, const int* first, const int* parent, const int* depth, const int* length,
                  const int* pages, int max_pages, int max_rows, int max_sequences, float* partial, float* stats) {
    extern __shared__ __align__(128) u8 rings[];
    __shared__ __align__(8) u64 barriers[PARTS][STAGES];
    __shared__ Batch batch;
    __shared__ Item item;
    __shared__ float2 of_parts[PARTS][TILE_Q];
    __shared__ int limits[MAX_ROWS];
    __shared__ u64 above[MAX_ROWS];
    launch_dependent_grids();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    u8 *const own = rings + warp * RING_BYTES, *const queries = rings + PARTS * RING_BYTES;
    Ring ring = {smem_address(own), smem_address(barriers[warp]), 0, 0, 0, 0, 0};
    if (threadIdx.x == THREADS - 1) prefetch_map(k), prefetch_map(v);
    if (lane < STAGES) mbarrier_init(ring.barriers + 8 * lane, 1);
    if (threadIdx.x < PENDING) read_batch(batch, counts, first, parent, depth, length, max_rows, max_sequences);
    if (threadIdx.x == 0) item.sequence = item.before = 0;
    bool waited = false;
#pragma unroll 1
    for (int n = blockIdx.x;; n += gridDim.x) {
        __syncthreads();  // barriers and batch are ready; the previous item and its sums are no longer read
        if (threadIdx.x == 0) find(n, item, batch, pages, max_pages);
        __syncthreads();  // the item is stored
        if (item.queries.n == 0) break;
        const KvRange part = part_of(item, warp);
        ring.begin(part);
        // positions that were accepted before need not wait for earlier kernels
        const bool early = (part.begin + 1) * TILE_KV <= part.committed;
        if (early && STAGES <= 2 * COPIES) {
            UNROLL for (int i = 0; i < STAGES; ++i) ring.start(k, v, part);
        }
        if (!waited) wait_on_dependent_grids();
        waited = true;
        if (!early || STAGES > 2 * COPIES) {
            UNROLL for (int i = 0; i < STAGES; ++i) ring.start(k, v, part);
        }
        if (threadIdx.x < item.rows) read_mask(item, threadIdx.x, batch, limits, above);
        store_queries(queries, q, item.queries);
        float acc[BLOCKS][2][QUERY_COLUMNS][4];
        Softmax softmax;
        UNROLL for (int m = 0; m < BLOCKS; ++m)
            UNROLL for (int h = 0; h < 2; ++h) clear(acc[m][h]);
        UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
            UNROLL for (int e = 0; e < 2; ++e) {
                softmax.base[c][e].value = BaseScore::NONE;
                UNROLL for (int i = 0; i < COPIES; ++i) softmax.sum[i][c][e] = 0.0f;
            }
        __syncthreads();  // queries and masks are stored
        attend(ring, own, k, v, part, queries, limits, above, acc, softmax);
        UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
            UNROLL for (int e = 0; e < 2; ++e) {
                float total = 0.0f;
                UNROLL for (int i = 0; i < COPIES; ++i) {
                    float sum = softmax.sum[i][c][e];
                    UNROLL for (int by = 4; by < 32; by *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, by));
                    total = i ? __fadd_rn(total, sum) : sum;
                }
                if (g == 0) of_parts[warp][8 * c + 2 * t + e] = make_float2(softmax.base[c][e].stored(), total);
            }
        __syncthreads();  // the rings are no longer read
        float* const sums = (float*)rings + warp * (TILE_Q * SUM_PITCH);
        UNROLL for (int m = 0; m < BLOCKS; ++m)
            UNROLL for (int c = 0; c < QUERY_COLUMNS; ++c)
                UNROLL for (int e = 0; e < 2; ++e)
                    *(float4*)(sums + (8 * c + 2 * t + e) * SUM_PITCH + 32 * m + 4 * g) =
                        make_float4(acc[m][0][c][e], acc[m][0][c][2 + e], acc[m][1][c][e], acc[m][1][c][2 + e]);
        __syncthreads();  // the sums of all warps are stored
        store(item, (const float*)rings, of_parts, partial, stats);
        fence_async_proxy();  // the next copies write where the sums were
    }
    if (!waited) wait_on_dependent_grids();
}
