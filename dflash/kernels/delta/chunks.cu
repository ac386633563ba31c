// What the rows of a chunk do to each other, before any state is known. With g the running sum of log decays in the chunk:
//
//   ATTEND[i, j] = exp(g_i - g_j) q_i . k_j for j <= i
//   SOLVE = inverse of I + M, M[i, j] = strength_i exp(g_i - g_j) k_i . k_j for j < i: forward substitution in float32
//   FADE[i] = exp(g_i), REMAINS[i] = exp(g_last - g_i)
//
// A block has one chunk of one head. Matrices are stored as halves and what their rounding left out, of the blocks of
// 16 x 16 on and below the diagonal.
//
// Grid (chunks or more, HEADS), block 128.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value.
// Bytes: 4 * CHUNK * (WIDTH + 2 * CHUNK) a chunk and head.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES)
#error "GROUPS, HEADS, WIDTH and VALUES must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES;
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "chunk.cuh"
#include "gates.cuh"

constexpr int STRIDE = WIDTH + 8, TURNED = CHUNK + 4, TILE = 16;
constexpr float WEAKEST = -40.0f;  // nothing of a memory shows after exp of it; keeps sums of logs exact

// Column `column` of the inverse, 16 rows at a time. `m` is the transpose of M, `x` the inverse.
__device__ __forceinline__ void substitute(const float* m, float* x, int column) {
    const int above = column / 32 * 2;  // a warp has 32 columns: rows before them are zero
    for (int tile = above; tile < CHUNK / TILE; ++tile) {
        float mine[TILE];
#pragma unroll
        for (int r = 0; r < TILE; ++r) mine[r] = tile * TILE + r == column ? 1.0f : 0.0f;
#pragma unroll 4
        for (int l = above * TILE; l < tile * TILE; ++l) {
            const float known = x[l * CHUNK + column];
            const float* const line = m + l * TURNED + tile * TILE;
#pragma unroll
            for (int r = 0; r < TILE; r += 4) {
                const float4 factor = *(const float4*)(line + r);
                mine[r] = __fmaf_rn(-factor.x, known, mine[r]);
                mine[r + 1] = __fmaf_rn(-factor.y, known, mine[r + 1]);
                mine[r + 2] = __fmaf_rn(-factor.z, known, mine[r + 2]);
                mine[r + 3] = __fmaf_rn(-factor.w, known, mine[r + 3]);
            }
        }
#pragma unroll
        for (int l = 0; l < TILE; ++l) {
            const float* const line = m + (tile * TILE + l) * TURNED + tile * TILE;
            x[(tile * TILE + l) * CHUNK + column] = mine[l];
#pragma unroll
            for (int r = l / 4 * 4; r < TILE; r += 4) {
                const float4 factor = *(const float4*)(line + r);
                mine[r] = __fmaf_rn(-factor.x, mine[l], mine[r]);
                mine[r + 1] = __fmaf_rn(-factor.y, mine[l], mine[r + 1]);
                mine[r + 2] = __fmaf_rn(-factor.z, mine[l], mine[r + 2]);
                mine[r + 3] = __fmaf_rn(-factor.w, mine[l], mine[r + 3]);
            }
        }
    }
}

__device__ __forceinline__ void store_pair(u16* matrices, int which, int at, float low, float high) {
    const u32 rounded = pack_half2(low, high);
    *(u32*)(matrices + which * MATRIX + at) = rounded;
    *(u32*)(matrices + (which + 1) * MATRIX + at) = half2_lo(rounded, low, high);
}

extern "C" __global__ void __launch_bounds__(128) chunks(
    const unsigned short* prepared, const float* alpha, const float* beta, const float* ssm_a, const float* ssm_dt,
    const int* counts, const int* first, const int* length, unsigned short* matrices, float* gates) {
    launch_dependent_grids();
    extern __shared__ float4 dynamic[];
    u16* const k = (u16*)dynamic;
    u16* const q = k + CHUNK * STRIDE;
    float* const m = (float*)dynamic;  // in place of k and q, once those are multiplied
    float* const x = m + CHUNK * TURNED;
    __shared__ float log_fade[CHUNK], strong[CHUNK];
    wait_on_dependent_grids();
    int s = 0, chunk = blockIdx.x, n_rows = 0;
    for (;; ++s) {
        if (s == counts[1]) return;
        n_rows = first[s + 1] - first[s];
        const int n = chunks_of(n_rows, length[s]);
        if (chunk < n) break;
        chunk -= n;
    }
    const int head = blockIdx.y, group = head % GROUPS, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int n = size_of(chunk, n_rows, length[s]), row = first[s] + start_of(chunk, length[s]);
    constexpr int LINES = WIDTH / 8;
    for (int i = threadIdx.x; i < CHUNK * LINES; i += 128) {
        const int r = i / LINES, c = i % LINES * 8;
        const u16* const from = prepared + (size_t)(row + (r < n ? r : 0)) * CHANNELS + group * WIDTH + c;
        cp_async_16_zfill(q + r * STRIDE + c, from, r < n);
        cp_async_16_zfill(k + r * STRIDE + c, from + GROUPS * WIDTH, r < n);
    }
    cp_async_commit_group();
    float* const of_chunk = gates + ((size_t)blockIdx.x * HEADS + head) * GATES * CHUNK;
    if (warp == 0) {
        float g[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const int r = 2 * lane + i;
            const size_t at = (size_t)(row + (r < n ? r : 0)) * HEADS + head;
            g[i] = r < n ? fmaxf(log_decay(alpha[at], ssm_a[head], ssm_dt[head]), WEAKEST) : 0.0f;
            strong[r] = r < n ? strength(beta[at]) : 0.0f;
            of_chunk[STRENGTH * CHUNK + r] = strong[r];
        }
        float sum = __fadd_rn(g[0], g[1]);
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            const float before = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum = __fadd_rn(before, sum);
        }
        float upper = __shfl_up_sync(~0u, sum, 1);
        if (lane == 0) upper = 0.0f;
        const float last = __shfl_sync(~0u, sum, 31), lower = __fadd_rn(upper, g[0]);
        log_fade[2 * lane] = lower, log_fade[2 * lane + 1] = sum;
        of_chunk[FADE * CHUNK + 2 * lane] = expf(lower), of_chunk[FADE * CHUNK + 2 * lane + 1] = expf(sum);
        of_chunk[REMAINS * CHUNK + 2 * lane] = expf(last - lower);
        of_chunk[REMAINS * CHUNK + 2 * lane + 1] = expf(last - sum);
    }
    cp_async_wait_group<0>();
    __syncthreads();

    float of_k[CHUNK / 8][4], of_q[CHUNK / 8][4];
#pragma unroll
    for (int t = 0; t < CHUNK / 8; ++t)
#pragma unroll
        for (int e = 0; e < 4; ++e) of_k[t][e] = of_q[t][e] = 0.0f;
    for (int c = 0; c < WIDTH; c += 16) {
        u32 from_k[4], from_q[4];
        load_a(from_k, k, STRIDE, warp * TILE, c, lane);
        load_a(from_q, q, STRIDE, warp * TILE, c, lane);
#pragma unroll
        for (int t = 0; t < CHUNK / 16; ++t) {
            if (t > warp) continue;
            u32 b[4];
            load_b(b, k, STRIDE, t * 16, c, lane);
            mma_m16n8k16(of_k[2 * t], from_k, b[0], b[1]), mma_m16n8k16(of_k[2 * t + 1], from_k, b[2], b[3]);
            mma_m16n8k16(of_q[2 * t], from_q, b[0], b[1]), mma_m16n8k16(of_q[2 * t + 1], from_q, b[2], b[3]);
        }
    }
    __syncthreads();
    u16* const of_head = matrices + ((size_t)blockIdx.x * HEADS + head) * MATRICES * MATRIX;
#pragma unroll
    for (int t = 0; t < CHUNK / 8; ++t) {
        if (t / 2 > warp) continue;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int i = warp * TILE + lane / 4 + 8 * half, j = t * 8 + lane % 4 * 2;
            float attend[2];
#pragma unroll
            for (int e = 0; e < 2; ++e) {
                const float ratio = i >= j + e ? expf(log_fade[i] - log_fade[j + e]) : 0.0f;
                attend[e] = ratio * of_q[t][2 * half + e];
                m[(j + e) * TURNED + i] = i > j + e ? strong[i] * ratio * of_k[t][2 * half + e] : 0.0f;
            }
            store_pair(of_head, ATTEND, i * CHUNK + j, attend[0], attend[1]);
        }
    }
    __syncthreads();
    if (warp < 2) substitute(m, x, threadIdx.x);
    __syncthreads();
    for (int i = threadIdx.x; i < MATRIX / 2; i += 128) {
        const int r = 2 * i / CHUNK, c = 2 * i % CHUNK;
        if (c / TILE > r / TILE) continue;
        const bool known = r / 32 >= c / 32;
        store_pair(of_head, SOLVE, 2 * i, known ? x[2 * i] : 0.0f, known ? x[2 * i + 1] : 0.0f);
    }
}
