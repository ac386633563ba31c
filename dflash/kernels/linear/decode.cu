// out = x @ W.T for up to 64 tokens: weights stream through shared memory once, tensor cores multiply 16 rows with 8
// tokens.
//
// K is cut into slices, and a warp takes TILES tiles of 16 rows and walks along one slice. Products with half activations
// are summed in float32; scales multiply those sums. At last the slices are added up in order: either the warps of a block
// are the slices of few rows (SLICES > 0; there few bytes of tokens are read), or a block takes one slice of 128 rows,
// whose warps share the tokens, and the one that arrives last adds up. Which slices there are does not depend on the
// tokens, and nothing else orders a sum, so a token has the same bits in any company.
//
// Grid (groups of rows of all weights, slices or 1), block 256 / TILES, shared STAGES * STAGE bytes.
// Macros: QUANT, the format; TOKENS, 8 to 64; TILES, 1 or 2; STAGES, how many tiles a warp has in flight; MODE; SLICES.
// Bytes: those of the tiles, once; the tokens once a block; the partial sums of the slices.
#include "../formats/quants.cuh"

#if !defined(QUANT) || !defined(TOKENS) || !defined(TILES) || !defined(STAGES) || !defined(MODE) || !defined(SLICES)
#error "QUANT, TOKENS, TILES, STAGES, MODE and SLICES must be defined"
#endif
#define STORE 0
#define ADD 1
#define GATED 2

using Q = QUANT;
constexpr int NT = TOKENS / 8, WARPS = 8 / TILES, THREADS = 32 * WARPS;
constexpr int BLOCKS = TOKENS >= 32 ? 2 : 3;  // of a processor, at least: registers they may take
constexpr int STEPS = Q::TILE_K / 32, LINES = 9 * 32;
constexpr int X_LINES = STEPS + (Q::MINIMA ? 1 : 0), X_BYTES = SLICES ? 0 : NT * X_LINES * 512;
constexpr int STAGE = 8 * Q::BYTES + X_BYTES;
constexpr int ACROSS = SLICES ? SLICES : 1, PARTS = SLICES && MODE == GATED ? 2 : 1;
constexpr int GROUP_ROWS = 128 / (ACROSS * PARTS);
static_assert(SLICES == 0 || TILES == 1 && 8 % (SLICES * PARTS) == 0, "the warps of a block are slices of whole tiles");
static_assert(TOKENS % 8 == 0 && TOKENS <= 64 && 8 % TILES == 0, "tokens come in eights, to 64");

struct Weight {
    const u8* tiles;
    float* out;
    int rows, stride;
};

__device__ __forceinline__ void fetch(u32 shared, const u8* tile, int lane) {
#pragma unroll
    for (int i = 0; i < Q::BYTES / 512; ++i) copy_16(shared + 512 * i + 16 * lane, tile + 512 * i + 16 * lane);
    constexpr int DONE = Q::BYTES / 512 * 512;
    if (DONE + 16 * lane < Q::BYTES) copy_16(shared + DONE + 16 * lane, tile + DONE + 16 * lane);
}

// All threads of a block copy the lines of all tokens that belong to one tile.
__device__ __forceinline__ void fetch_tokens(u32 shared, const uint4* x, size_t x_step, int first) {
    for (int i = threadIdx.x; i < NT * X_LINES * 32; i += THREADS) {
        copy_16(shared + 16 * i, x + i / (X_LINES * 32) * x_step + first * 32 + i % (X_LINES * 32));
    }
}

__device__ __forceinline__ void add_scaled(float (&total)[4], const float (&part)[4], float upper, float lower) {
    total[0] = __fmaf_rn(upper, part[0], total[0]);
    total[1] = __fmaf_rn(upper, part[1], total[1]);
    total[2] = __fmaf_rn(lower, part[2], total[2]);
    total[3] = __fmaf_rn(lower, part[3], total[3]);
}

__device__ __forceinline__ void clear(float (&d)[4]) { d[0] = d[1] = d[2] = d[3] = 0.0f; }

// Add the products of one tile with all tokens, whose lines start at `x`.
__device__ __forceinline__ void multiply_tile(const u8* const (&tile)[TILES], const uint4* x, size_t x_step, int n_tokens,
                                              int lane, float (&total)[TILES][NT][4]) {
    const int g = lane / 4, t = lane % 4;
    float part[TILES][NT][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) clear(part[m][n]);
#pragma unroll(NT == 1 ? STEPS : 2)
    for (int j = 0; j < STEPS; ++j) {
        uint4 b[NT];
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            b[n] = make_uint4(0, 0, 0, 0);
            if (!SLICES) {
                b[n] = x[n * x_step + j * 32];
            } else if (8 * n + g < n_tokens) {
                b[n] = __ldg(x + n * x_step + j * 32);
            }
        }
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            u32 a[8];
            Q::fragment(tile[m], j, lane, a);
            if (Q::GROUP == 16) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float upper = Q::scale(tile[m], g, 2 * j + h), lower = Q::scale(tile[m], g + 8, 2 * j + h);
#pragma unroll
                    for (int n = 0; n < NT; ++n) {
                        float d[4];
                        clear(d);
                        mma(d, a + 4 * h, h ? b[n].z : b[n].x, h ? b[n].w : b[n].y);
                        add_scaled(total[m][n], d, upper, lower);
                    }
                }
            } else {
                const float upper = Q::scale(tile[m], g, j), lower = Q::scale(tile[m], g + 8, j);
#pragma unroll
                for (int n = 0; n < NT; ++n) {
                    if (Q::GROUP == 32) {
                        float d[4];
                        clear(d);
                        mma(d, a, b[n].x, b[n].y);
                        mma(d, a + 4, b[n].z, b[n].w);
                        add_scaled(total[m][n], d, upper, lower);
                    } else {
                        mma(part[m][n], a, b[n].x, b[n].y);
                        mma(part[m][n], a + 4, b[n].z, b[n].w);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        if (Q::GROUP == Q::TILE_K) {
            const float upper = Q::scale(tile[m], g, 0), lower = Q::scale(tile[m], g + 8, 0);
#pragma unroll
            for (int n = 0; n < NT; ++n) add_scaled(total[m][n], part[m][n], upper, lower);
        }
        if (Q::MINIMA) {
            u32 a[4];
            Q::minima(tile[m], g, t, a[0], a[2]);
            Q::minima(tile[m], g + 8, t, a[1], a[3]);
            const float upper = Q::minimum_scale(tile[m], g), lower = Q::minimum_scale(tile[m], g + 8);
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                const uint4 sums = x[n * x_step + 8 * 32];
                float d[4];
                clear(d);
                mma(d, a, sums.x, sums.y);
                mma(d, a, sums.z, sums.w);
                add_scaled(total[m][n], d, upper, lower);
            }
        }
    }
}

// Where the sums of a group, a slice and a lane lie: float4s, a fragment after the other.
__device__ __forceinline__ float4* partial_at(float* partial, int group, int slice) {
    return (float4*)partial + (size_t)(group * gridDim.y + slice) * (32 * TOKENS) + threadIdx.x;
}

// Sum of the slices of one fragment, in order.
__device__ __forceinline__ float4 sum_slices(float* partial, int group, int fragment) {
    const float4* from = partial_at(partial, group, 0) + fragment * THREADS;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
    for (int slice = 0; slice < gridDim.y; ++slice) {
        const float4 v = __ldcg(from + (size_t)slice * (32 * TOKENS));
        sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w;
    }
    return sum;
}

__device__ __forceinline__ float silu(float x) { return __fdiv_rn(x, 1.0f + expf(-x)); }

// Write a fragment: rows `row` and 8 further, tokens `token` and the next.
__device__ __forceinline__ void write(const Weight& w, int row, int token, int n_tokens, const float* unit,
                                      const float (&v)[4], const float (&up)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
        if (row + e / 2 * 8 >= w.rows || token + e % 2 >= n_tokens) continue;
        const float factor = unit[token + e % 2];
        float* out = w.out + (size_t)(token + e % 2) * w.stride + row + e / 2 * 8;
        float value = __fmul_rn(v[e], factor);
        if (MODE == GATED) value = __fmul_rn(silu(value), __fmul_rn(up[e], factor));
        *out = MODE == ADD ? __fadd_rn(*out, value) : value;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
decode(const unsigned char* x, const float* unit, float* partial, int* arrived, int n_tokens, int tiles_of_row,
       unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0,
       unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1,
       unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2,
       unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ int last;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;

    Weight w = {(const u8*)tiles_0, (float*)out_0, rows_0, stride_0};
    int group = blockIdx.x, groups = (rows_0 + GROUP_ROWS - 1) / GROUP_ROWS;
    if (group >= groups) {
        group -= groups, groups = (rows_1 + GROUP_ROWS - 1) / GROUP_ROWS;
        w = {(const u8*)tiles_1, (float*)out_1, rows_1, stride_1};
        if (group >= groups) {
            group -= groups, groups = (rows_2 + GROUP_ROWS - 1) / GROUP_ROWS;
            w = {(const u8*)tiles_2, (float*)out_2, rows_2, stride_2};
            if (group >= groups) {
                group -= groups;
                w = {(const u8*)tiles_3, (float*)out_3, rows_3, stride_3};
            }
        }
    }
    if (PARTS == 2 && warp / ACROSS % 2) w.tiles = (const u8*)tiles_1;
    const int slice = SLICES ? warp % ACROSS : blockIdx.y, slices = SLICES ? ACROSS : gridDim.y;
    const int begin = (int)((long long)tiles_of_row * slice / slices);
    const int end = (int)((long long)tiles_of_row * (slice + 1) / slices);
    const int row_tiles = (w.rows + 15) / 16;
    const int row_tile = group * (GROUP_ROWS / 16) + (SLICES ? warp / (ACROSS * PARTS) : warp * TILES);

    const u8* source[TILES];
    const uint4* lines = (const uint4*)x;
    const size_t x_step = (size_t)((tiles_of_row * STEPS + 7) / 8) * LINES;
    const u32 ring_address = (u32)__cvta_generic_to_shared(ring);
#pragma unroll
    for (int m = 0; m < TILES; ++m) {
        source[m] = w.tiles + (size_t)min(row_tile + m, row_tiles - 1) * tiles_of_row * Q::BYTES;
    }
    const auto fill = [&](int stage, int i) {
#pragma unroll
        for (int m = 0; m < TILES; ++m) {
            fetch(ring_address + stage * STAGE + (warp * TILES + m) * Q::BYTES, source[m] + (size_t)i * Q::BYTES, lane);
        }
        if (!SLICES) {
            fetch_tokens(ring_address + stage * STAGE + 8 * Q::BYTES, lines, x_step, i * STEPS / 8 * 9 + i * STEPS % 8);
        }
    };
#pragma unroll
    for (int s = 0; s < STAGES; ++s) {
        if (begin + s < end) fill(s, begin + s);
        copy_commit();
    }

    float total[TILES][NT][4];
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) clear(total[m][n]);
    int stage = 0;
    for (int i = begin; i < end; ++i) {
        copy_wait<STAGES - 1>();
        SLICES ? __syncwarp() : __syncthreads();
        const u8* tile[TILES];
#pragma unroll
        for (int m = 0; m < TILES; ++m) tile[m] = ring + stage * STAGE + (warp * TILES + m) * Q::BYTES;
        if (SLICES) {
            const int first = i * STEPS / 8 * 9 + i * STEPS % 8;
            multiply_tile(tile, lines + first * 32 + lane, x_step, n_tokens, lane, total);
        } else {
            const uint4* here = (const uint4*)(ring + stage * STAGE + 8 * Q::BYTES);
            multiply_tile(tile, here + lane, X_LINES * 32, n_tokens, lane, total);
        }
        SLICES ? __syncwarp() : __syncthreads();
        if (i + STAGES < end) fill(stage, i + STAGES);
        copy_commit();
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }

    const int row = row_tile * 16 + lane / 4, token = lane % 4 * 2;
    if (SLICES > 1 || PARTS == 2) {
        copy_wait<0>();
        __syncthreads();
        float4* sums = (float4*)ring + threadIdx.x;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const float* v = total[0][n];
            sums[n * THREADS] = make_float4(v[0], v[1], v[2], v[3]);
        }
        __syncthreads();
        if (warp % (ACROSS * PARTS)) return;
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            float v[PARTS][4];
#pragma unroll
            for (int part = 0; part < PARTS; ++part) {
                clear(v[part]);
#pragma unroll
                for (int i = 0; i < ACROSS; ++i) {
                    const float4 u = sums[n * THREADS + (part * ACROSS + i) * 32];
                    v[part][0] += u.x, v[part][1] += u.y, v[part][2] += u.z, v[part][3] += u.w;
                }
            }
            write(w, row, token + 8 * n, n_tokens, unit, v[0], v[PARTS - 1]);
        }
        return;
    }
    if (SLICES || MODE != GATED && gridDim.y == 1) {
#pragma unroll
        for (int m = 0; m < TILES; ++m)
#pragma unroll
            for (int n = 0; n < NT; ++n) {
                write(w, row + 16 * m, token + 8 * n, n_tokens, unit, total[m][n], total[m][n]);
            }
        return;
    }

    float4* to = partial_at(partial, blockIdx.x, blockIdx.y);
#pragma unroll
    for (int m = 0; m < TILES; ++m)
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const float* v = total[m][n];
            __stcg(to + (m * NT + n) * THREADS, make_float4(v[0], v[1], v[2], v[3]));
        }
    __threadfence();
    __syncthreads();
    const int first = MODE == GATED ? group : blockIdx.x, expected = gridDim.y * (MODE == GATED ? 2 : 1);
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived + first, 1) == expected - 1;
        if (last) arrived[first] = 0;
    }
    __syncthreads();
    if (!last) return;
    __threadfence();
#pragma unroll 4
    for (int f = 0; f < TILES * NT; ++f) {
        if (f % NT * 8 >= n_tokens) continue;
        const float4 v = sum_slices(partial, first, f);
        const float4 u = MODE == GATED ? sum_slices(partial, first + gridDim.x / 2, f) : v;
        write(w, row + f / NT * 16, token + f % NT * 8, n_tokens, unit, {v.x, v.y, v.z, v.w}, {u.x, u.y, u.z, u.w});
    }
}
