// The state of a head through the chunks of a prompt, and what the rows read out. Of each chunk, with S as it was before:
//
//   X = strength (V - FADE K S);  U = SOLVE X;  O = FADE Q S + ATTEND U;  S = FADE[last] S + (REMAINS K)' U
//
// A warp has 16 value rows of the state in its accumulators all along, transposed, so that each product is the left operand
// of the next one; the warps of a block share what is fetched. Where roundings would add up over a chunk (SOLVE, ATTEND, U),
// the rest of a half is multiplied, too. At the end the tail of the conv moves.
//
// Grid (VALUES / SLICE, HEADS, sequences or fewer), block 2 * SLICE, shared STAGES * STAGE bytes.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value; TAPS; SLICE, value rows of a
// block; STAGES, chunks in flight, 1 or 2.
// Bytes: CHUNK * (4 * WIDTH + 8 * CHUNK + 6 * SLICE) a chunk and block, mostly out of the L2 cache.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES) || !defined(TAPS) || !defined(SLICE) || \
    !defined(STAGES)
#error "GROUPS, HEADS, WIDTH, VALUES, TAPS, SLICE and STAGES must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES, THREADS = 2 * SLICE, PENDING = 64;
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "../conv/above.cuh"
#include "chunk.cuh"

constexpr int WIDE = WIDTH + 8, SQUARE = CHUNK + 8, THIN = SLICE + 8, TILES = CHUNK / 16, KEYS = WIDTH / 16;
constexpr int ABREAST = KEYS % 4 == 0 ? 4 : KEYS % 2 == 0 ? 2 : 1;
constexpr int STAGE = 2 * (CHUNK * (2 * WIDE + THIN + MATRICES * SQUARE)) + 4 * GATES * CHUNK;
static_assert(VALUES % SLICE == 0 && SLICE % 16 == 0, "a warp has 16 value rows");
static_assert(STAGES == 1 || STAGES == 2, "one chunk is used, at most one fetched");

struct Stage {
    u16 *k, *q, *v, *matrices;
    float* gates;
    __device__ __forceinline__ Stage(char* from) {
        k = (u16*)from, q = k + CHUNK * WIDE, v = q + CHUNK * WIDE, matrices = v + CHUNK * THIN;
        gates = (float*)(matrices + MATRICES * CHUNK * SQUARE);
    }
    __device__ __forceinline__ const u16* matrix(int which) const { return matrices + which * CHUNK * SQUARE; }
};

// A chunk of n rows: `prepared` is its first row, `matrices` and `gates` are those of the chunk and head.
__device__ __forceinline__ void fetch(const Stage& stage, const u16* prepared, const u16* matrices, const float* gates,
                                      int n, int head) {
    constexpr int LINES = WIDTH / 8, OF_SLICE = SLICE / 8, OF_MATRIX = CHUNK / 8;
    for (int i = threadIdx.x; i < CHUNK * LINES; i += THREADS) {
        const int r = i / LINES, c = i % LINES * 8;
        const u16* const from = prepared + (size_t)(r < n ? r : 0) * CHANNELS + head % GROUPS * WIDTH + c;
        cp_async_16_zfill(stage.q + r * WIDE + c, from, r < n);
        cp_async_16_zfill(stage.k + r * WIDE + c, from + GROUPS * WIDTH, r < n);
    }
    const int channel = 2 * GROUPS * WIDTH + head * VALUES + blockIdx.x * SLICE;
    for (int i = threadIdx.x; i < CHUNK * OF_SLICE; i += THREADS) {
        const int r = i / OF_SLICE, c = i % OF_SLICE * 8;
        cp_async_16_zfill(stage.v + r * THIN + c, prepared + (size_t)(r < n ? r : 0) * CHANNELS + channel + c, r < n);
    }
    for (int i = threadIdx.x; i < MATRICES * CHUNK * OF_MATRIX; i += THREADS) {
        const int r = i / OF_MATRIX, c = i % OF_MATRIX * 8;
        if (c / 16 <= r % CHUNK / 16) cp_async_16(smem_address(stage.matrices + r * SQUARE + c), matrices + (size_t)r * CHUNK + c);
    }
    for (int i = threadIdx.x; i < GATES * CHUNK / 4; i += THREADS) {
        cp_async_16(smem_address(stage.gates + 4 * i), gates + 4 * i);
    }
    cp_async_commit_group();
}

struct Accumulator {
    float of[CHUNK / 8][4];
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int t = 0; t < CHUNK / 8; ++t)
#pragma unroll
            for (int e = 0; e < 4; ++e) of[t][e] = 0.0f;
    }
};

// to += left @ (matrix + matrix_rest).T, which are lower triangular, and with LEFT_REST + left_rest @ matrix.T. Products
// that follow each other go to different sums, so none waits for another.
template <bool LEFT_REST>
__device__ __forceinline__ void multiply(Accumulator& to, const u32 (&left)[TILES][4], const u32 (&left_rest)[TILES][4],
                                         const u16* matrix, const u16* matrix_rest, int lane) {
#pragma unroll
    for (int j = 0; j < TILES; ++j) {
        u32 b[TILES][4];
#pragma unroll
        for (int t = j; t < TILES; ++t) {
            load_b(b[t], matrix, SQUARE, 16 * t, 16 * j, lane);
            mma_m16n8k16(to.of[2 * t], left[j], b[t][0], b[t][1]), mma_m16n8k16(to.of[2 * t + 1], left[j], b[t][2], b[t][3]);
        }
        if (LEFT_REST) {
#pragma unroll
            for (int t = j; t < TILES; ++t) {
                mma_m16n8k16(to.of[2 * t], left_rest[j], b[t][0], b[t][1]), mma_m16n8k16(to.of[2 * t + 1], left_rest[j], b[t][2], b[t][3]);
            }
        }
#pragma unroll
        for (int t = j; t < TILES; ++t) {
            load_b(b[t], matrix_rest, SQUARE, 16 * t, 16 * j, lane);
            mma_m16n8k16(to.of[2 * t], left[j], b[t][0], b[t][1]), mma_m16n8k16(to.of[2 * t + 1], left[j], b[t][2], b[t][3]);
        }
    }
}

// The new tail of the conv, for one channel.
__device__ __forceinline__ void move_tail(const float* mixed, float* tail, const Above& above, int first, int n_rows,
                                          int channel) {
    float before[TAPS - 1];
#pragma unroll
    for (int t = 1; t < TAPS; ++t) {
        const size_t row = first + n_rows - t;
        before[t - 1] = n_rows >= t ? mixed[row * CHANNELS + channel] : above.at(t - n_rows, channel);
    }
#pragma unroll
    for (int t = 1; t < TAPS; ++t) tail[(size_t)(TAPS - 1 - t) * CHANNELS + channel] = before[t - 1];
}

extern "C" __global__ void __launch_bounds__(THREADS) scan(
    const unsigned short* prepared, const unsigned short* matrices, const float* gates, const float* mixed,
    const int* counts, const int* first, const int* length, const int* slot, const int* kept, const int* n_kept,
    const int* side, float* tail, const float* inputs, float* state, const float* k, const float* u, const float* decay,
    int slots, float* read_out) {
    launch_dependent_grids();
    extern __shared__ float4 dynamic[];
    const int head = blockIdx.y, group = head % GROUPS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t2 = lane % 4 * 2;
    const int value = head * VALUES + blockIdx.x * SLICE + 16 * warp + g;  // of all heads' values: this one and 8 after it
    wait_on_dependent_grids();
    int before = 0;
    for (int s = 0; s < counts[1]; ++s) {
        const int start = first[s], n_rows = first[s + 1] - start, n_chunks = chunks_of(n_rows, length[s]);
        const int at = before;
        before += n_chunks;
        if (s % gridDim.z != blockIdx.z || n_chunks == 0) continue;
        const size_t old = (size_t)(side[s] * slots + slot[s]) * PENDING;
        float* const committed = state + ((size_t)slot[s] * HEADS * VALUES + value) * WIDTH + t2;
        const size_t of_chunk = (size_t)HEADS * MATRICES * MATRIX, gates_of_chunk = (size_t)HEADS * GATES * CHUNK;
        const u16* const first_matrices = matrices + at * of_chunk + (size_t)head * MATRICES * MATRIX;
        const float* const first_gates = gates + at * gates_of_chunk + (size_t)head * GATES * CHUNK;
        auto fetch_chunk = [&](int c) {
            const u16* const rows = prepared + (size_t)(start + start_of(c, length[s])) * CHANNELS;
            fetch(Stage((char*)dynamic + c % STAGES * STAGE), rows, first_matrices + c * of_chunk,
                  first_gates + c * gates_of_chunk, size_of(c, n_rows, length[s]), head);
        };
        if (STAGES == 2) fetch_chunk(0);
        float own[2 * KEYS][4];
#pragma unroll
        for (int t = 0; t < 2 * KEYS; ++t) {
            const float2 upper = *(const float2*)(committed + 8 * t);
            const float2 lower = *(const float2*)(committed + 8 * WIDTH + 8 * t);
            own[t][0] = upper.x, own[t][1] = upper.y, own[t][2] = lower.x, own[t][3] = lower.y;
        }
        for (int i = 0; i < n_kept[s]; ++i) {
            const size_t row = old + kept[s * PENDING + i];
            const float factor = decay[row * HEADS + head];
            const float upper = u[row * HEADS * VALUES + value], lower = u[row * HEADS * VALUES + value + 8];
            const float* const key = k + (row * GROUPS + group) * WIDTH + t2;
#pragma unroll
            for (int t = 0; t < 2 * KEYS; ++t) {
                const float2 pair = *(const float2*)(key + 8 * t);
                own[t][0] = __fmaf_rn(upper, pair.x, __fmul_rn(factor, own[t][0]));
                own[t][1] = __fmaf_rn(upper, pair.y, __fmul_rn(factor, own[t][1]));
                own[t][2] = __fmaf_rn(lower, pair.x, __fmul_rn(factor, own[t][2]));
                own[t][3] = __fmaf_rn(lower, pair.y, __fmul_rn(factor, own[t][3]));
            }
        }
        for (int c = 0; c < n_chunks; ++c) {
            const Stage stage((char*)dynamic + c % STAGES * STAGE);
            if (STAGES == 1) fetch_chunk(c);
            cp_async_wait_group<0>();
            __syncthreads();
            if (STAGES == 2 && c + 1 < n_chunks) fetch_chunk(c + 1);
            const float *const fade = stage.gates + FADE * CHUNK, *const strong = stage.gates + STRENGTH * CHUNK;
            const float* const remains = stage.gates + REMAINS * CHUNK;
            Accumulator p, o;
            p.clear(), o.clear();
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                u32 a[4];
                sums_to_a(a, own[2 * j], own[2 * j + 1]);
#pragma unroll
                for (int t = 0; t < TILES; ++t) {
                    u32 b[4];
                    load_b(b, stage.k, WIDE, 16 * t, 16 * j, lane);
                    mma_m16n8k16(p.of[2 * t], a, b[0], b[1]), mma_m16n8k16(p.of[2 * t + 1], a, b[2], b[3]);
                    load_b(b, stage.q, WIDE, 16 * t, 16 * j, lane);
                    mma_m16n8k16(o.of[2 * t], a, b[0], b[1]), mma_m16n8k16(o.of[2 * t + 1], a, b[2], b[3]);
                }
            }
            u32 left[TILES][4], rest[TILES][4];
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                u32 v[4];
                load_d_trans(v, stage.v, THIN, 16 * t, 16 * warp, lane);
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 f = *(const float2*)(fade + 16 * t + 8 * h + t2);
                    const float2 b = *(const float2*)(strong + 16 * t + 8 * h + t2);
                    float(&x)[4] = p.of[2 * t + h];
                    float(&y)[4] = o.of[2 * t + h];
                    x[0] = b.x * (to_float((u16)v[2 * h]) - f.x * x[0]);
                    x[1] = b.y * (to_float((u16)(v[2 * h] >> 16)) - f.y * x[1]);
                    x[2] = b.x * (to_float((u16)v[2 * h + 1]) - f.x * x[2]);
                    x[3] = b.y * (to_float((u16)(v[2 * h + 1] >> 16)) - f.y * x[3]);
                    y[0] *= f.x, y[1] *= f.y, y[2] *= f.x, y[3] *= f.y;
                }
                sums_to_a(left[t], p.of[2 * t], p.of[2 * t + 1]);
            }
            p.clear();
            multiply<false>(p, left, left, stage.matrix(SOLVE), stage.matrix(SOLVE_REST), lane);
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
                sums_to_a(left[t], p.of[2 * t], p.of[2 * t + 1]);
                sums_to_a_lo(rest[t], left[t], p.of[2 * t], p.of[2 * t + 1]);
            }
            multiply<true>(o, left, rest, stage.matrix(ATTEND), stage.matrix(ATTEND_REST), lane);
            const float last = fade[CHUNK - 1];
#pragma unroll
            for (int t = 0; t < 2 * KEYS; ++t)
#pragma unroll
                for (int e = 0; e < 4; ++e) own[t][e] *= last;
#pragma unroll
            for (int t = 0; t < TILES; ++t) {
#pragma unroll
                for (int h = 0; h < 2; ++h) {
                    const float2 f = *(const float2*)(remains + 16 * t + 8 * h + t2);
                    float(&x)[4] = p.of[2 * t + h];
                    x[0] *= f.x, x[1] *= f.y, x[2] *= f.x, x[3] *= f.y;
                }
                u32 a[4], a_rest[4];
                sums_to_a(a, p.of[2 * t], p.of[2 * t + 1]);
                sums_to_a_lo(a_rest, a, p.of[2 * t], p.of[2 * t + 1]);
#pragma unroll
                for (int j = 0; j < KEYS; j += ABREAST) {
                    u32 b[ABREAST][4];
#pragma unroll
                    for (int i = 0; i < ABREAST; ++i) {
                        load_b_trans(b[i], stage.k, WIDE, 16 * t, 16 * (j + i), lane);
                        mma_m16n8k16(own[2 * (j + i)], a, b[i][0], b[i][1]), mma_m16n8k16(own[2 * (j + i) + 1], a, b[i][2], b[i][3]);
                    }
#pragma unroll
                    for (int i = 0; i < ABREAST; ++i) {
                        mma_m16n8k16(own[2 * (j + i)], a_rest, b[i][0], b[i][1]), mma_m16n8k16(own[2 * (j + i) + 1], a_rest, b[i][2], b[i][3]);
                    }
                }
            }
            const int n = size_of(c, n_rows, length[s]);
            float* const out = read_out + (size_t)(start + start_of(c, length[s])) * HEADS * VALUES + value;
#pragma unroll
            for (int t = 0; t < CHUNK / 8; ++t)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int i = 8 * t + t2 + e;
                    if (i < n) {
                        out[(size_t)i * HEADS * VALUES] = o.of[t][e];
                        out[(size_t)i * HEADS * VALUES + 8] = o.of[t][e + 2];
                    }
                }
            if (STAGES == 1) __syncthreads();
        }
#pragma unroll
        for (int t = 0; t < 2 * KEYS; ++t) {
            *(float2*)(committed + 8 * t) = make_float2(own[t][0], own[t][1]);
            *(float2*)(committed + 8 * WIDTH + 8 * t) = make_float2(own[t][2], own[t][3]);
        }
        float* const text = tail + (size_t)slot[s] * (TAPS - 1) * CHANNELS;
        const Above above{text, inputs + old * CHANNELS, kept + s * PENDING, n_kept[s]};
        const int first_value = 2 * GROUPS * WIDTH + head * VALUES + blockIdx.x * SLICE;
        for (int i = threadIdx.x; i < SLICE; i += THREADS) move_tail(mixed, text, above, start, n_rows, first_value + i);
        if (head < GROUPS && blockIdx.x == 0) {
            for (int i = threadIdx.x; i < 2 * WIDTH; i += THREADS) {
                const int channel = (i / WIDTH * GROUPS + group) * WIDTH + i % WIDTH;
                move_tail(mixed, text, above, start, n_rows, channel);
            }
        }
        __syncthreads();
    }
}
