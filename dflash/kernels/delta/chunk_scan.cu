// Prefill, third kernel: the scan of a head's state over the chunks, and the read-outs (inter-chunk part). For each chunk,
// with S the state before it and beta, decay and to_end as diagonal matrices:
//
//   X = beta (V - decay K S);  U = WY_INVERSE X;  O = decay Q S + QK_MASKED U;  S = decay[last] S + (to_end K)' U
//
// Roles: all warps copy the tiles of a chunk to shared memory and share them; each warp multiplies. A warp holds 16 value
// rows of the state in its accumulators, transposed, so that each product is the A operand of the next one. Where rounding
// errors would add up over a chunk (WY_INVERSE, QK_MASKED, U), the rounding error of each float16 is multiplied as well. At
// the end the conv state is updated. Where a chunk ends, state and conv state can also be copied elsewhere (`StateCopies`).
//
// Grid (VALUE_DIM / BLOCK_V, VALUE_HEADS, sequences or fewer), block 2 * BLOCK_V, shared memory STAGES * STAGE bytes.
// Macros: those of stored_rows.cuh; TAPS of the conv; BLOCK_V, value rows of a block;
// STAGES, chunks in flight, 1 or 2. Bytes: CHUNK * (4 * KEY_DIM + 8 * CHUNK + 6 * BLOCK_V) a chunk and block, mostly from
// the L2 cache.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "chunk.cuh"
#include "conv_context.cuh"
#include "stored_rows.cuh"

#if !defined(BLOCK_V) || !defined(STAGES)
#error "BLOCK_V and STAGES must be defined"
#endif

constexpr int THREADS = 2 * BLOCK_V;
constexpr int KEY_STRIDE = KEY_DIM + 8, MATRIX_STRIDE = CHUNK + 8, VALUE_STRIDE = BLOCK_V + 8, TILES = CHUNK / 16,
              KEY_TILES = KEY_DIM / 16;
constexpr int KEYS_AT_ONCE = KEY_TILES % 4 == 0 ? 4 : KEY_TILES % 2 == 0 ? 2 : 1;
constexpr int STAGE = 2 * (CHUNK * (2 * KEY_STRIDE + VALUE_STRIDE + N_MATRICES * MATRIX_STRIDE)) + 4 * N_GATES * CHUNK;
static_assert(VALUE_DIM % BLOCK_V == 0 && BLOCK_V % 16 == 0, "a warp has 16 value rows");
static_assert(STAGES == 1 || STAGES == 2, "STAGES must be 1 or 2");

struct Stage {
    u16 *k, *q, *v, *matrices;
    float* gates;
    __device__ __forceinline__ Stage(char* from) {
        k = (u16*)from, q = k + CHUNK * KEY_STRIDE, v = q + CHUNK * KEY_STRIDE, matrices = v + CHUNK * VALUE_STRIDE;
        gates = (float*)(matrices + N_MATRICES * CHUNK * MATRIX_STRIDE);
    }
    __device__ __forceinline__ const u16* matrix(int which) const { return matrices + which * CHUNK * MATRIX_STRIDE; }
};

// Start to copy a chunk of n rows. `prepared`: its first row. `matrices` and `gates`: those of the chunk and head.
__device__ __forceinline__ void fetch(const Stage& stage, const u16* prepared, const u16* matrices, const float* gates,
                                      int n, int head) {
    constexpr int KEY_LINES = KEY_DIM / 8, VALUE_LINES = BLOCK_V / 8, MATRIX_LINES = CHUNK / 8;
    for (int i = threadIdx.x; i < CHUNK * KEY_LINES; i += THREADS) {
        const int r = i / KEY_LINES, c = i % KEY_LINES * 8;
        const u16* const from = prepared + (size_t)(r < n ? r : 0) * CHANNELS + key_head(head) * KEY_DIM + c;
        cp_async_16_zfill(stage.q + r * KEY_STRIDE + c, from, r < n);
        cp_async_16_zfill(stage.k + r * KEY_STRIDE + c, from + KEY_HEADS * KEY_DIM, r < n);
    }
    const int channel = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + blockIdx.x * BLOCK_V;
    for (int i = threadIdx.x; i < CHUNK * VALUE_LINES; i += THREADS) {
        const int r = i / VALUE_LINES, c = i % VALUE_LINES * 8;
        cp_async_16_zfill(stage.v + r * VALUE_STRIDE + c, prepared + (size_t)(r < n ? r : 0) * CHANNELS + channel + c,
                          r < n);
    }
    for (int i = threadIdx.x; i < N_MATRICES * CHUNK * MATRIX_LINES; i += THREADS) {
        const int r = i / MATRIX_LINES, c = i % MATRIX_LINES * 8;
        if (c / 16 <= r % CHUNK / 16)
            cp_async_16(smem_address(stage.matrices + r * MATRIX_STRIDE + c), matrices + (size_t)r * CHUNK + c);
    }
    for (int i = threadIdx.x; i < N_GATES * CHUNK / 4; i += THREADS) {
        cp_async_16(smem_address(stage.gates + 4 * i), gates + 4 * i);
    }
    cp_async_commit_group();
}

using Accumulator = float[CHUNK / 8][4];

// to += a @ (matrix + matrix_lo).T, both matrices lower triangular. WITH_LO also adds a_lo @ matrix.T. Consecutive
// multiplies add to different sums, so that none waits for another.
template <bool WITH_LO>
__device__ __forceinline__ void multiply(Accumulator& to, const u32 (&frag)[TILES][4], const u32 (&frag_lo)[TILES][4],
                                         const u16* matrix, const u16* matrix_lo, int lane) {
    UNROLL for (int j = 0; j < TILES; ++j) {
        u32 b[TILES][4];
        UNROLL for (int t = j; t < TILES; ++t) {
            load_b(b[t], matrix, MATRIX_STRIDE, 16 * t, 16 * j, lane);
            mma_m16n16k16(to + 2 * t, frag[j], b[t]);
        }
        if (WITH_LO) {
            UNROLL for (int t = j; t < TILES; ++t) {
                mma_m16n16k16(to + 2 * t, frag_lo[j], b[t]);
            }
        }
        UNROLL for (int t = j; t < TILES; ++t) {
            load_b(b[t], matrix_lo, MATRIX_STRIDE, 16 * t, 16 * j, lane);
            mma_m16n16k16(to + 2 * t, frag[j], b[t]);
        }
    }
}

// Set channel `channel` of the conv state `tail` to the last inputs of rows first .. first + n_rows - 1 of `mixed`, the rows
// of a sequence, and of the context before them.
__device__ __forceinline__ void move_tail(float* tail, const ConvContext& context, const float* mixed, int first, int n_rows,
                                          int channel) {
    float before[TAPS - 1];
    UNROLL for (int t = 1; t < TAPS; ++t) {
        const size_t row = first + n_rows - t;
        before[t - 1] = n_rows >= t ? mixed[row * CHANNELS + channel] : context.at(t - n_rows, channel);
    }
    UNROLL for (int t = 1; t < TAPS; ++t) tail[(size_t)(TAPS - 1 - t) * CHANNELS + channel] = before[t - 1];
}

// Table of copies: number, then of each its sequence, its rows, and the addresses of tails and states of all layers.
struct StateCopies {
    static constexpr int LINE = 32, MAX = 8;  // words of a cache line; most copies, as in state_copies.py
    const int* words;
    int n, layer;

    __device__ __forceinline__ int sequence(int i) const { return words[LINE + i]; }
    __device__ __forceinline__ int rows(int i) const { return words[2 * LINE + i]; }
    __device__ __forceinline__ float* tail(int i) const {
        return ((float**)(words + 3 * LINE))[2 * i] + (size_t)layer * (TAPS - 1) * CHANNELS;
    }
    __device__ __forceinline__ float* state(int i) const {
        return ((float**)(words + 3 * LINE))[2 * i + 1] + (size_t)layer * VALUE_HEADS * VALUE_DIM * KEY_DIM;
    }
};

// Store a thread's part of the state; `to`: its first value.
__device__ __forceinline__ void store_state(float* to, const float (&own)[2 * KEY_TILES][4]) {
    UNROLL for (int t = 0; t < 2 * KEY_TILES; ++t) {
        *(float2*)(to + 8 * t) = make_float2(own[t][0], own[t][1]);
        *(float2*)(to + 8 * KEY_DIM + 8 * t) = make_float2(own[t][2], own[t][3]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
chunk_scan(const unsigned short* prepared, const unsigned short* matrices, const float* gates, const float* mixed,
           const int* counts, const int* first, const int* length, const int* slot, const int* accepted,
           const int* n_accepted, const int* buffer, float* tail, const float* inputs, float* state, const float* k,
           const float* u, const float* decay, int slots, float* read_out, const int* copy_words, int layer) {
    launch_dependent_grids();
    extern __shared__ float4 dynamic[];
    const int head = blockIdx.y, group = key_head(head), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int g = lane / 4, t2 = lane % 4 * 2;
    const int value =
        head * VALUE_DIM + blockIdx.x * BLOCK_V + 16 * warp + g;  // the thread's value rows: this one and the one 8 after it
    wait_on_dependent_grids();
    const StateCopies copies = {copy_words, copy_words ? *copy_words : 0, layer};
    int before = 0;
    for (int s = 0; s < counts[1]; ++s) {
        const int start = first[s], n_rows = first[s + 1] - start, n_chunks = chunks_of(n_rows, length[s]);
        const int at = before;
        before += n_chunks;
        if (s % gridDim.z != blockIdx.z || n_chunks == 0) continue;
        const size_t old = (size_t)(buffer[s] * slots + slot[s]) * STORED_ROWS;
        float* const committed = state + ((size_t)slot[s] * VALUE_HEADS * VALUE_DIM + value) * KEY_DIM + t2;
        const size_t of_chunk = (size_t)VALUE_HEADS * N_MATRICES * MATRIX_SIZE,
                     gates_of_chunk = (size_t)VALUE_HEADS * N_GATES * CHUNK;
        const u16* const first_matrices = matrices + at * of_chunk + (size_t)head * N_MATRICES * MATRIX_SIZE;
        const float* const first_gates = gates + at * gates_of_chunk + (size_t)head * N_GATES * CHUNK;
        auto fetch_chunk = [&](int c) {
            const u16* const rows = prepared + (size_t)(start + start_of(c, length[s])) * CHANNELS;
            fetch(Stage((char*)dynamic + c % STAGES * STAGE), rows, first_matrices + c * of_chunk,
                  first_gates + c * gates_of_chunk, size_of(c, n_rows, length[s]), head);
        };
        if (STAGES == 2) fetch_chunk(0);
        float own[2 * KEY_TILES][4];
        UNROLL for (int t = 0; t < 2 * KEY_TILES; ++t) {
            const float2 upper = *(const float2*)(committed + 8 * t);
            const float2 lower = *(const float2*)(committed + 8 * KEY_DIM + 8 * t);
            own[t][0] = upper.x, own[t][1] = upper.y, own[t][2] = lower.x, own[t][3] = lower.y;
        }
        for (int i = 0; i < n_accepted[s]; ++i) {
            const size_t row = old + accepted[s * PENDING + i];
            const float factor = decay[row * VALUE_HEADS + head];
            const float upper = u[row * VALUE_HEADS * VALUE_DIM + value],
                        lower = u[row * VALUE_HEADS * VALUE_DIM + value + 8];
            const float* const key = k + (row * KEY_HEADS + group) * KEY_DIM + t2;
            UNROLL for (int t = 0; t < 2 * KEY_TILES; ++t) {
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
            __syncthreads();  // the chunk is visible, and the stage that is refilled below was read
            if (STAGES == 2 && c + 1 < n_chunks) fetch_chunk(c + 1);
            const float *const decays = stage.gates + DECAY * CHUNK, *const beta = stage.gates + BETA * CHUNK;
            const float* const to_end = stage.gates + DECAY_TO_END * CHUNK;
            Accumulator p, o;
            clear(p), clear(o);
            UNROLL for (int j = 0; j < KEY_TILES; ++j) {
                u32 a[4];
                sums_to_a(a, own[2 * j], own[2 * j + 1]);
                UNROLL for (int t = 0; t < TILES; ++t) {
                    u32 b[4];
                    load_b(b, stage.k, KEY_STRIDE, 16 * t, 16 * j, lane);
                    mma_m16n16k16(p + 2 * t, a, b);
                    load_b(b, stage.q, KEY_STRIDE, 16 * t, 16 * j, lane);
                    mma_m16n16k16(o + 2 * t, a, b);
                }
            }
            u32 frag[TILES][4], frag_lo[TILES][4];
            UNROLL for (int t = 0; t < TILES; ++t) {
                u32 v[4];
                load_d_trans(v, stage.v, VALUE_STRIDE, 16 * t, 16 * warp, lane);
                UNROLL for (int h = 0; h < 2; ++h) {
                    const float2 f = *(const float2*)(decays + 16 * t + 8 * h + t2);
                    const float2 b = *(const float2*)(beta + 16 * t + 8 * h + t2);
                    float (&x)[4] = p[2 * t + h];
                    float (&y)[4] = o[2 * t + h];
                    x[0] = b.x * __fmaf_rn(-f.x, x[0], to_float((u16)v[2 * h]));
                    x[1] = b.y * __fmaf_rn(-f.y, x[1], to_float((u16)(v[2 * h] >> 16)));
                    x[2] = b.x * __fmaf_rn(-f.x, x[2], to_float((u16)v[2 * h + 1]));
                    x[3] = b.y * __fmaf_rn(-f.y, x[3], to_float((u16)(v[2 * h + 1] >> 16)));
                    y[0] *= f.x, y[1] *= f.y, y[2] *= f.x, y[3] *= f.y;
                }
                sums_to_a(frag[t], p[2 * t], p[2 * t + 1]);
            }
            clear(p);
            multiply<false>(p, frag, frag, stage.matrix(WY_INVERSE), stage.matrix(WY_INVERSE_LO), lane);
            UNROLL for (int t = 0; t < TILES; ++t) {
                sums_to_a(frag[t], p[2 * t], p[2 * t + 1]);
                sums_to_a_lo(frag_lo[t], frag[t], p[2 * t], p[2 * t + 1]);
            }
            multiply<true>(o, frag, frag_lo, stage.matrix(QK_MASKED), stage.matrix(QK_MASKED_LO), lane);
            const float last = decays[CHUNK - 1];
            UNROLL for (int t = 0; t < 2 * KEY_TILES; ++t)
                UNROLL for (int e = 0; e < 4; ++e) own[t][e] *= last;
            UNROLL for (int t = 0; t < TILES; ++t) {
                UNROLL for (int h = 0; h < 2; ++h) {
                    const float2 f = *(const float2*)(to_end + 16 * t + 8 * h + t2);
                    float (&x)[4] = p[2 * t + h];
                    x[0] *= f.x, x[1] *= f.y, x[2] *= f.x, x[3] *= f.y;
                }
                u32 a[4], a_lo[4];
                sums_to_a(a, p[2 * t], p[2 * t + 1]);
                sums_to_a_lo(a_lo, a, p[2 * t], p[2 * t + 1]);
                UNROLL for (int j = 0; j < KEY_TILES; j += KEYS_AT_ONCE) {
                    u32 b[KEYS_AT_ONCE][4];
                    UNROLL for (int i = 0; i < KEYS_AT_ONCE; ++i) {
                        load_b_trans(b[i], stage.k, KEY_STRIDE, 16 * t, 16 * (j + i), lane);
                        mma_m16n16k16(own + 2 * (j + i), a, b[i]);
                    }
                    UNROLL for (int i = 0; i < KEYS_AT_ONCE; ++i) {
                        mma_m16n16k16(own + 2 * (j + i), a_lo, b[i]);
                    }
                }
            }
            for (int i = 0; i < copies.n; ++i) {
                if (copies.sequence(i) == s && copies.rows(i) == start_of(c + 1, length[s]))
                    store_state(copies.state(i) + (size_t)value * KEY_DIM + t2, own);
            }
            const int n = size_of(c, n_rows, length[s]);
            float* const out = read_out + (size_t)(start + start_of(c, length[s])) * VALUE_HEADS * VALUE_DIM + value;
            UNROLL for (int t = 0; t < CHUNK / 8; ++t)
                UNROLL for (int e = 0; e < 2; ++e) {
                    const int i = 8 * t + t2 + e;
                    if (i < n) {
                        out[(size_t)i * VALUE_HEADS * VALUE_DIM] = o[t][e];
                        out[(size_t)i * VALUE_HEADS * VALUE_DIM + 8] = o[t][e + 2];
                    }
                }
            if (STAGES == 1) __syncthreads();  // the chunk was read
        }
        store_state(committed, own);
        float* const slot_tail = tail + (size_t)slot[s] * (TAPS - 1) * CHANNELS;
        const ConvContext context{slot_tail, inputs + old * CHANNELS, accepted + s * PENDING, n_accepted[s]};
        const int first_value = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + blockIdx.x * BLOCK_V;
        const auto move_channels = [&](float* to, int rows) {
            for (int i = threadIdx.x; i < BLOCK_V; i += THREADS)
                move_tail(to, context, mixed, start, rows, first_value + i);
            if (is_first_of_group(head) && blockIdx.x == 0) {
                for (int i = threadIdx.x; i < 2 * KEY_DIM; i += THREADS) {
                    const int channel = (i / KEY_DIM * KEY_HEADS + group) * KEY_DIM + i % KEY_DIM;
                    move_tail(to, context, mixed, start, rows, channel);
                }
            }
        };
        for (int i = 0; i < copies.n; ++i)
            if (copies.sequence(i) == s) move_channels(copies.tail(i), copies.rows(i));
        move_channels(slot_tail, n_rows);  // last, since the copies read its values
        __syncthreads();  // the next sequence reuses the shared memory
    }
}
