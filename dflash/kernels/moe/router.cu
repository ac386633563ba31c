// Router of a decode step: RMS norm normed = x * gain / rms(x), in the layout of activation_spans.cuh, and logits = router @
// normed in float32. The logit of a shared expert is the last.
//
// A block computes the logits of OUTS experts for ROWS rows. Four warps share an expert, a quarter of its weights each; the
// weights are loaded into registers before the rows are ready. The order of the additions of a logit is the same for any
// ROWS and OUTS.
// For few rows the next launches read results before their launch has ended (early_read.cuh). This one publishes the logits
// and clears what the others publish: `inner`, `experts` and `factors`, and the norm behind the experts (`next_halves`,
// `next_squares`), and `later_bytes` of `later`, which a launch of the next layer publishes. They are null for many rows.
// Grid (LOGITS / OUTS, rows / ROWS, both rounded up), block 256, shared memory ROWS * MODEL_DIM floats. Macros: those of
// shape.cuh; OUTS, even; ROWS; OWN_GAIN, 1 if the router's weights contain a gain of the router, in place of `gain`, 0 unless
// defined.
// Bytes: the router's weights once for every ROWS rows; the rows once for every OUTS experts, repeats from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/early_read.cuh"
#include "../gpu/include/warp.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"

#if !defined(OUTS) || !defined(ROWS)
#error "OUTS and ROWS must be defined"
#endif
#ifndef OWN_GAIN
#define OWN_GAIN 0
#endif
constexpr int VECTORS = MODEL_DIM / 4, CHUNKS = (VECTORS + 127) / 128, N_SPANS = (MODEL_DIM + SPAN - 1) / SPAN,
              OUTS_PER_WARP = OUTS / 2, LOGITS = EXPERTS + N_SHARED;
constexpr int ROW_OF_INNER = SLOTS * ((larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN) * SPAN_BYTES;
constexpr int ROWS_IN_FLIGHT = ROWS < 4 || CHUNKS > 8   ? 1
                               : ROWS < 8 || CHUNKS > 4 ? 2
                                                        : 4;  // rows that a warp loads at a time
static_assert(MODEL_DIM % 4 == 0 && OUTS % 2 == 0, "rows of whole vectors, experts two at a time");

__device__ __forceinline__ void load_quarter(const float* row, int quarter, int lane, float4 (&v)[CHUNKS]) {
    UNROLL for (int j = 0; j < CHUNKS; ++j) {
        const int i = (4 * j + quarter) * 32 + lane;
        v[j] = i < VECTORS ? ((const float4*)row)[i] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
}

// Dot product of a quarter of a row, the same in all lanes.
__device__ __forceinline__ float dot(const float4 (&a)[CHUNKS], const float4 (&b)[CHUNKS]) {
    float4 s = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int j = 0; j < CHUNKS; ++j) {
        s.x = __fmaf_rn(a[j].x, b[j].x, s.x), s.y = __fmaf_rn(a[j].y, b[j].y, s.y);
        s.z = __fmaf_rn(a[j].z, b[j].z, s.z), s.w = __fmaf_rn(a[j].w, b[j].w, s.w);
    }
    return warp_sum(__fadd_rn(__fadd_rn(s.x, s.y), __fadd_rn(s.z, s.w)));
}

__device__ __forceinline__ float add_quarters(const float* q) {
    return __fadd_rn(__fadd_rn(q[0], q[1]), __fadd_rn(q[2], q[3]));
}

__device__ __forceinline__ float4 scaled(const float4& x, const float4& g) {
    return make_float4(__fmul_rn(x.x, g.x), __fmul_rn(x.y, g.y), __fmul_rn(x.z, g.z), __fmul_rn(x.w, g.w));
}

// Write the normed rows. The blocks of the same rows share the work.
__device__ void write_rows(const float* rows, const float* gain, const float* inverse, int n_rows, u8* to) {
    constexpr int OF_ROW = N_SPANS * SPAN / 4;
    for (int i = blockIdx.x * 256 + threadIdx.x; i < n_rows * OF_ROW; i += gridDim.x * 256) {
        const int r = i / OF_ROW, vector = i % OF_ROW;
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (vector < VECTORS) x = ((const float4*)(rows + r * MODEL_DIM))[vector];
        if (OWN_GAIN && vector < VECTORS) x = scaled(x, ((const float4*)gain)[vector]);
        write_values(to + (size_t)r * N_SPANS * SPAN_BYTES, vector, x, inverse[r]);
    }
}

// Scale of a row from the sums of squares of its quarters.
__device__ __forceinline__ float inverse_rms(const float* squares, float eps) {
    return __frsqrt_rn(__fadd_rn(__fdiv_rn(add_quarters(squares), (float)MODEL_DIM), eps));
}

extern "C" __global__ void __launch_bounds__(256)
router(const float* stream, const float* gain, const float* weights, const float* shared_weights, const int* counts,
       float eps, unsigned char* normed, float* logits, unsigned char* inner, int* experts, float* factors,
       unsigned short* next_halves, float* next_squares, unsigned short* later, int later_bytes) {
    extern __shared__ __align__(16) float rows[];
    __shared__ float squares[ROWS][4], products[ROWS][OUTS][4];
#if ROWS > 1
    __shared__ float inverse[ROWS];
#endif
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = warp % 4, row_0 = blockIdx.y * ROWS;
    float4 w[OUTS_PER_WARP][CHUNKS], g[CHUNKS];
    UNROLL for (int o = 0; o < OUTS_PER_WARP; ++o) {
        const int e = blockIdx.x * OUTS + 2 * o + warp / 4;
        load_quarter(e < EXPERTS ? weights + (size_t)e * MODEL_DIM : shared_weights, quarter, lane, w[o]);
    }
    load_quarter(gain, quarter, lane, g);
    const int n_here = min(min(counts[0], (int)gridDim.y * ROWS) - row_0, ROWS);  // no kernel of a pass writes the counts
#if ROWS == 1
    // Every warp keeps its quarter of the row in registers, so that sums of squares and products need one barrier. Where launches
    // overlap, a first pass has the gain in place of the row, so that the instructions are in the caches after the wait.
    float inverse[1];
#pragma unroll 1
    for (int pass = __CUDA_ARCH__ >= 900 ? 0 : 1; pass < 2; ++pass) {
        if (pass) {
            __syncthreads();  // the sums of the first pass are read
            wait_on_dependent_grids();
            launch_dependent_grids();  // only now, so that all earlier launches have ended when the next one starts to poll
        }
        const bool real = pass && n_here == 1;
        float4 x[CHUNKS];
        load_quarter(real ? stream + (size_t)row_0 * MODEL_DIM : gain, quarter, lane, x);
        const float sum = dot(x, x);
        if (lane == 0 && warp < 4) squares[0][quarter] = sum;
        UNROLL for (int j = 0; j < CHUNKS; ++j) {
            const int k = (4 * j + quarter) * 32 + lane;
            if (!OWN_GAIN) x[j] = scaled(x[j], g[j]);
            if (warp < 4 && k < VECTORS) ((float4*)rows)[k] = x[j];
        }
        UNROLL for (int o = 0; o < OUTS_PER_WARP; ++o) {
            const float product = dot(w[o], x);
            if (lane == 0) products[0][2 * o + warp / 4][quarter] = product;
        }
        __syncthreads();  // the row, its sums of squares and the products of all quarters are stored
        inverse[0] = inverse_rms(squares[0], eps);
        if (threadIdx.x < OUTS) {
            const int e = blockIdx.x * OUTS + threadIdx.x;
            const float logit = __fmul_rn(add_quarters(products[0][threadIdx.x]), inverse[0]);
            if (real && e < LOGITS) publish(logits + row_0 * LOGITS + e, __float_as_uint(logit));
        }
    }
#else
    wait_on_dependent_grids();
    launch_dependent_grids();  // only now, so that all earlier launches have ended when the next one starts to poll

#pragma unroll 1
    for (int start = warp / 4; start < n_here; start += 2 * ROWS_IN_FLIGHT) {
        float4 x[ROWS_IN_FLIGHT][CHUNKS];
        UNROLL for (int i = 0; i < ROWS_IN_FLIGHT; ++i) {
            if (start + 2 * i < n_here)
                load_quarter(stream + (size_t)(row_0 + start + 2 * i) * MODEL_DIM, quarter, lane, x[i]);
        }
        UNROLL for (int i = 0; i < ROWS_IN_FLIGHT; ++i) {
            const int r = start + 2 * i;
            if (r >= n_here) break;
            const float sum = dot(x[i], x[i]);
            if (lane == 0) squares[r][quarter] = sum;
            UNROLL for (int j = 0; j < CHUNKS; ++j) {
                const int k = (4 * j + quarter) * 32 + lane;
                if (k < VECTORS) ((float4*)(rows + r * MODEL_DIM))[k] = OWN_GAIN ? x[i][j] : scaled(x[i][j], g[j]);
            }
        }
    }
    __syncthreads();  // rows and sums of squares are complete
    for (int r = threadIdx.x; r < n_here; r += 256) {
        inverse[r] = inverse_rms(squares[r], eps);
    }
#pragma unroll 1
    for (int r = 0; r < n_here; ++r) {
        float4 x[CHUNKS];
        load_quarter(rows + r * MODEL_DIM, quarter, lane, x);
        UNROLL for (int o = 0; o < OUTS_PER_WARP; ++o) {
            const float sum = dot(w[o], x);
            if (lane == 0) products[r][2 * o + warp / 4][quarter] = sum;
        }
    }
    __syncthreads();  // the products of all quarters are stored
    for (int i = threadIdx.x; i < n_here * OUTS; i += 256) {
        const int r = i / OUTS, e = blockIdx.x * OUTS + i % OUTS;
        const float logit = __fmul_rn(add_quarters(products[r][i % OUTS]), inverse[r]);
        if (e < LOGITS) publish(logits + (row_0 + r) * LOGITS + e, __float_as_uint(logit));
    }
#endif
    const int first = blockIdx.x * 256 + threadIdx.x, step = gridDim.x * 256;
    if (inner) {
        clear_published(inner + (size_t)row_0 * ROW_OF_INNER, n_here * ROW_OF_INNER, first, step);
        clear_published(experts + row_0 * N_USED, n_here * N_USED * 4, first, step);
        clear_published(factors + row_0 * SLOTS, n_here * SLOTS * 4, first, step);
    }
    if (next_halves) {
        constexpr int TILES = MODEL_DIM / 16;
        clear_published(next_halves + (size_t)row_0 * MODEL_DIM, n_here * MODEL_DIM * 2, first, step);
        clear_published(next_squares + (size_t)row_0 * TILES, n_here * TILES * 4, first, step);
    }
    if (later && row_0 == 0) clear_published(later, later_bytes, first, step);
    write_rows(rows, gain, inverse, n_here, normed + (size_t)row_0 * N_SPANS * SPAN_BYTES);
}
