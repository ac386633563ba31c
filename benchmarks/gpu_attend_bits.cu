// Attention of one row over a cache of BITS bits, 4 or 8, without masks: scores, softmax and values of a span of positions by
// each warp alone, without barriers between warps.
//
// A warp takes one KV head and a range of positions, 16 * SUB at a time, through its own ring in shared memory. Scores are
// K @ Q.T: unpacked keys are fragments A of `mma.sync`, so that the queries of a head, up to 8, are its columns. Scales of keys
// multiply the sums of a block of 32 elements. Sums of values are V.T @ P.T: scales of values multiply the weights P.
//   4 bits  a nibble u holds (u - 8) * scale. A key's nibbles are denormal halves u * 2^-24 or 16 u * 2^-24; the 8 is
//           subtracted where sums start. Values are 1024 + u or 1024 + 16 u, from which 1032 or 1152 is subtracted.
//   8 bits  a byte n ^ 128 holds n * scale, as halves 1152 + n.
//
// A cache is (pages, KV_HEADS, PAGE, HEAD_BYTES); the order of elements within a head is that of gpu_attend_bits.py. Grid any,
// block 128 * GROUPS, shared memory WARPS * STAGES * STAGE_BYTES, at least 8192
// * WARPS. Macros: BITS; GROUPS of four warps; SUB; STAGES; WORK, the
// sum of 1, scores, and 2, values: with less than 3 the result is wrong, and the time that of the rest.
// Outputs of block b: `partial` (BLOCKS, KV_HEADS, 8, 256), not divided by the sums; `stats` (BLOCKS, KV_HEADS, 8, 2): largest
// score, sum of weights.
#include "../dflash/kernels/gpu/include/clear.cuh"
#include "../dflash/kernels/gpu/include/mma.cuh"
#include "../dflash/kernels/gpu/include/pdl.cuh"
#include "../dflash/kernels/gpu/include/tma.cuh"

constexpr int HEAD = 256, BLOCKS = HEAD / 32, KV_HEADS = 4, PAGE = 256, GROUP_SIZE = 6;
constexpr int LINES = HEAD * BITS / 128, HEAD_BYTES = HEAD * BITS / 8 + 16, SPAN = 16 * SUB;
constexpr int PART_BYTES = SPAN * HEAD_BYTES, STAGE_BYTES = 2 * PART_BYTES, WARPS = KV_HEADS * GROUPS;
constexpr float UNIT = BITS == 4 ? 16777216.0f : 1.0f, ZERO = BITS == 4 ? 8.0f / UNIT : 1152.0f;
constexpr float SCALE = UNIT * 1.4426950408889634f / 16.0f;
static_assert(PAGE % SPAN == 0, "a stage lies in a page");

__device__ __forceinline__ u32 permute(u32 a, u32 b, u32 selector) { return __byte_perm(a, b, selector); }

__device__ __forceinline__ u32 transpose(u32 a) {
    u32 d;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// Queries of the head as B fragments of two steps of each block, and where sums start.
struct Queries {
    u32 b[BLOCKS][2][2];
    float start[BLOCKS][2];

    __device__ __forceinline__ void load(const u16* q, int head, int lane) {
        const int g = lane / 4, t = lane % 4;
        const auto at = [&](int d) { return g < GROUP_SIZE ? to_float(q[(head * GROUP_SIZE + g) * HEAD + d]) : 0.0f; };
        UNROLL for (int n = 0; n < BLOCKS; ++n) {
            float sum = 0.0f;
            UNROLL for (int s = 0; s < 2; ++s) UNROLL for (int r = 0; r < 2; ++r) {
                const int d = 32 * n + (BITS == 4 ? 8 * t + 2 * s + r : 16 * s + 4 * t + 2 * r);
                const float unit = BITS == 4 && r ? 1.0f / 16 : 1.0f, x = at(d), y = at(d + (BITS == 4 ? 4 : 1));
                b[n][s][r] = pack_half2(unit * x, unit * y);
                sum += x + y;
            }
            UNROLL for (int i = 1; i < 4; i *= 2) sum += __shfl_xor_sync(~0u, sum, i);
            UNROLL for (int e = 0; e < 2; ++e) start[n][e] = -ZERO * __shfl_sync(~0u, sum, 4 * (2 * t + e));
        }
    }
};

// Fragment A of step s of a block from the words of keys g and g + 8.
__device__ __forceinline__ void unpack_keys(u32 (&a)[4], const u32 (&words)[2][BITS * 2], int block, int s) {
    UNROLL for (int h = 0; h < 2; ++h) {
        if (BITS == 4) {
            const u32 w = words[h][block] >> 8 * s;
            a[h] = w & 0x000f000f, a[2 + h] = w & 0x00f000f0;
        } else {
            const u32 w = words[h][(2 * block + s) % (BITS * 2)] ^ 0x80808080;
            a[h] = permute(w, 0x64646464, 0x4140), a[2 + h] = permute(w, 0x64646464, 0x4342);
        }
    }
}

// Scores of 16 keys: s[0], s[1] of key g and queries 2 t, 2 t + 1, s[2], s[3] of key g + 8.
__device__ __forceinline__ void multiply_keys(float (&s)[4], const Queries& q, const u8* keys, int lane) {
    const u8* row[2] = {keys + lane / 4 * HEAD_BYTES, keys + (lane / 4 + 8) * HEAD_BYTES};
    u32 words[2][BITS * 2], scales[2][4];
    UNROLL for (int h = 0; h < 2; ++h) {
        UNROLL for (int i = 0; i < BITS / 2; ++i)
            *(uint4*)&words[h][4 * i] = *(const uint4*)(row[h] + (i / 2 * 8 + lane % 4 * 2 + i % 2) * 16);
        *(uint4*)scales[h] = *(const uint4*)(row[h] + LINES * 16);
    }
    clear(s);
    UNROLL for (int n = 0; n < BLOCKS; ++n) {
        float d[4] = {q.start[n][0], q.start[n][1], q.start[n][0], q.start[n][1]};
        UNROLL for (int step = 0; step < 2; ++step) {
            u32 a[4];
            unpack_keys(a, words, n, step);
            mma_m16n8k16(d, a, q.b[n][step][0], q.b[n][step][1]);
        }
        UNROLL for (int h = 0; h < 2; ++h) {
            const float scale = to_float((u16)(scales[h][n / 2] >> n % 2 * 16));
            UNROLL for (int e = 0; e < 2; ++e) s[2 * h + e] = __fmaf_rn(d[2 * h + e], scale, s[2 * h + e]);
        }
    }
}

// Fragment A of tile `half` of a block of values, from the words of positions 2 t, 2 t + 1 (0, 1), 2 t + 8 and 2 t + 9 (2, 3).
__device__ __forceinline__ void unpack_values(u32 (&a)[4], const u32 (&words)[4][BITS], int block, int half) {
    UNROLL for (int h = 0; h < 2; ++h) {
        if (BITS == 4) {
            const u32 x = words[2 * h][block / 2], y = words[2 * h + 1][block / 2];
            const u32 w = permute(x, y, block % 2 ? 0x7632 : 0x5410) >> 8 * half;
            a[2 * h] = sub_half2(w & 0x000f000f | 0x64006400, 0x64086408);
            a[2 * h + 1] = sub_half2(w & 0x00f000f0 | 0x64006400, 0x64806480);
        } else {
            const u32 x = words[2 * h][block % BITS], y = words[2 * h + 1][block % BITS];
            const u32 w = permute(x, y, half ? 0x7362 : 0x5140) ^ 0x80808080;
            a[2 * h] = sub_half2(permute(w, 0x64646464, 0x4140), 0x64806480);
            a[2 * h + 1] = sub_half2(permute(w, 0x64646464, 0x4342), 0x64806480);
        }
    }
}

// acc += values.T @ weights of 16 positions. `p`: fragment B of the weights.
__device__ __forceinline__ void multiply_values(float (&acc)[2 * BLOCKS][4], const u32 (&p)[2], const u8* values, int lane) {
    u32 words[4][BITS], scales[4][4];
    UNROLL for (int i = 0; i < 4; ++i) {
        const u8* row = values + (lane % 4 * 2 + i % 2 + i / 2 * 8) * HEAD_BYTES;
        UNROLL for (int j = 0; j < BITS / 4; ++j)
            *(uint4*)&words[i][4 * j] = *(const uint4*)(row + (lane / 4 + 8 * j) * 16);
        *(uint4*)scales[i] = *(const uint4*)(row + LINES * 16);
    }
    UNROLL for (int n = 0; n < BLOCKS; ++n) {
        const u32 selector = n % 2 ? 0x7632 : 0x5410;
        const u32 b0 = mul_half2(p[0], permute(scales[0][n / 2], scales[1][n / 2], selector));
        const u32 b1 = mul_half2(p[1], permute(scales[2][n / 2], scales[3][n / 2], selector));
        UNROLL for (int half = 0; half < 2; ++half) {
            u32 a[4];
            unpack_values(a, words, n, half);
            mma_m16n8k16(acc[2 * n + half], a, b0, b1);
        }
    }
}

__device__ __forceinline__ float quad_max(float x) {
    UNROLL for (int i = 4; i < 32; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1)
attend(const unsigned short* q, const unsigned char* k, const unsigned char* v, const int* pages, int depth, float* partial,
       float* stats) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ u64 barriers[WARPS][STAGES];
    __shared__ float merged[WARPS][8][2];
    launch_dependent_grids();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = warp % KV_HEADS, group = warp / KV_HEADS;
    const long long spans = depth / SPAN, part = blockIdx.x * GROUPS + group;
    const int first = (int)(spans * part / (gridDim.x * GROUPS)), past = (int)(spans * (part + 1) / (gridDim.x * GROUPS));
    u8* const ring = shared + warp * (STAGES * STAGE_BYTES);
    const u32 barrier = smem_address(&barriers[warp][0]);
    if (lane < STAGES) mbarrier_init(barrier + 8 * lane, 1);
    __syncwarp();
    wait_on_dependent_grids();
    const auto page_of = [&](int n) { return n < past ? __ldg(pages + n * SPAN / PAGE) : 0; };
    const auto fetch = [&](int slot, int n, int page) {
        if (n >= past || lane != 0) return;
        const size_t at = (((size_t)page * KV_HEADS + head) * PAGE + n * SPAN % PAGE) * HEAD_BYTES;
        const u32 to = smem_address(ring) + slot * STAGE_BYTES;
        mbarrier_arrive_expect_tx(barrier + 8 * slot, STAGE_BYTES);
        bulk_copy(to, k + at, PART_BYTES, barrier + 8 * slot);
        bulk_copy(to + PART_BYTES, v + at, PART_BYTES, barrier + 8 * slot);
    };
    UNROLL for (int i = 0; i < STAGES; ++i) fetch(i, first + i, page_of(first + i));
    int next_page = page_of(first + STAGES);
    float acc[2 * BLOCKS][4], sum[2] = {0.0f, 0.0f}, largest[2] = {-1e30f, -1e30f};
    clear(acc);
    Queries queries;
    queries.load(q, head, lane);
    int slot = 0, parity = 0;
#pragma unroll 1
    for (int n = first; n < past; ++n) {
        const u8 *keys = ring + slot * STAGE_BYTES, *values = keys + PART_BYTES;
        mbarrier_wait(barrier + 8 * slot, parity);
        float s[SUB][4], most[2] = {largest[0], largest[1]};
        UNROLL for (int i = 0; i < SUB; ++i) {
            clear(s[i]);
            if (WORK & 1) multiply_keys(s[i], queries, keys + i * 16 * HEAD_BYTES, lane);
            UNROLL for (int e = 0; e < 4; ++e) most[e % 2] = fmaxf(most[e % 2], s[i][e] * SCALE);
        }
        UNROLL for (int e = 0; e < 2; ++e) most[e] = quad_max(most[e]);
        if (__any_sync(~0u, most[0] > largest[0] || most[1] > largest[1])) {
            UNROLL for (int e = 0; e < 2; ++e) {
                const float rescale = exp2_approx(largest[e] - most[e]);
                sum[e] *= rescale, largest[e] = most[e];
                UNROLL for (int i = 0; i < 2 * BLOCKS; ++i) acc[i][e] *= rescale, acc[i][2 + e] *= rescale;
            }
        }
        UNROLL for (int i = 0; i < SUB; ++i) {
            UNROLL for (int e = 0; e < 4; ++e) {
                s[i][e] = exp2_approx(__fmaf_rn(s[i][e], SCALE, -largest[e % 2]));
                sum[e % 2] += s[i][e];
            }
            const u32 p[2] = {transpose(pack_half2(s[i][0], s[i][1])), transpose(pack_half2(s[i][2], s[i][3]))};
            if (WORK & 2) multiply_values(acc, p, values + i * 16 * HEAD_BYTES, lane);
        }
        __syncwarp();  // all lanes have read the stage
        fetch(slot, n + STAGES, next_page);
        next_page = page_of(n + STAGES + 1);
        if (++slot == STAGES) slot = 0, parity ^= 1;
    }
    UNROLL for (int e = 0; e < 2; ++e) {
        for (int i = 4; i < 32; i *= 2) sum[e] += __shfl_xor_sync(~0u, sum[e], i);
        if (lane < 4) merged[warp][2 * lane + e][0] = largest[e], merged[warp][2 * lane + e][1] = sum[e];
    }
    __syncthreads();  // the rings are no longer used
    float* const own = (float*)shared + warp * 8 * HEAD;
    UNROLL for (int n = 0; n < BLOCKS; ++n) UNROLL for (int half = 0; half < 2; ++half) UNROLL for (int e = 0; e < 4; ++e) {
        const int r = e / 2, g = lane / 4;
        const int d = 32 * n + (BITS == 4 ? 16 * half + 8 * r + g : 4 * g + 2 * half + r);
        own[(lane % 4 * 2 + e % 2) * HEAD + d] = acc[2 * n + half][e] * (BITS == 4 && r ? 1.0f / 16 : 1.0f);
    }
    __syncthreads();  // the sums of all warps are stored
    for (int x = group; x < GROUP_SIZE; x += GROUPS) {
        float most = -1e30f, total = 0.0f, out[8] = {};
        UNROLL for (int i = 0; i < GROUPS; ++i) most = fmaxf(most, merged[i * KV_HEADS + head][x][0]);
        UNROLL for (int i = 0; i < GROUPS; ++i) {
            const float factor = exp2_approx(merged[i * KV_HEADS + head][x][0] - most);
            total += factor * merged[i * KV_HEADS + head][x][1];
            UNROLL for (int j = 0; j < 8; ++j)
                out[j] += factor * ((float*)shared)[((i * KV_HEADS + head) * 8 + x) * HEAD + 32 * j + lane];
        }
        const size_t at = ((size_t)blockIdx.x * KV_HEADS + head) * 8 + x;
        UNROLL for (int j = 0; j < 8; ++j) partial[at * HEAD + 32 * j + lane] = out[j];
        if (lane == 0) stats[2 * at] = most, stats[2 * at + 1] = total;
    }
}
