// Prefill, second kernel: the interactions inside each chunk, which do not depend on the state: the WY form of Yang, Kautz,
// Hatamizadeh 2024, arXiv 2412.06464. With g the running sum of log decays in the chunk:
//
//   QK_MASKED[i, j] = exp(g_i - g_j) q_i . k_j for j <= i
//   WY_INVERSE = inverse of I + M, M[i, j] = beta_i exp(g_i - g_j) k_i . k_j for j < i, by forward substitution in float32
//   DECAY[i] = exp(g_i), DECAY_TO_END[i] = exp(g_last - g_i)
//
// A block handles one chunk of one head. Matrices are stored as float16 and its rounding error (*_LO), in the blocks of 16 x
// 16 on and below the diagonal. Roles: all four warps copy and multiply; warp 0 computes the gates; warps 0 and 1 invert.
//
// Grid (chunks or more, VALUE_HEADS), block 128, shared memory: the larger of 4 * CHUNK * (KEY_DIM + 8) and 4 * CHUNK * (2 *
// CHUNK + 4) bytes. Macros: KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, see shape.cuh.
// Bytes: 4 * CHUNK * (KEY_DIM + 2 * CHUNK) a chunk and head.
#include "../gpu/include/clear.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mma.cuh"
#include "../gpu/include/pdl.cuh"
#include "chunk.cuh"
#include "gates.cuh"
#include "shape.cuh"

constexpr int STRIDE = KEY_DIM + 8, TRANS_STRIDE = CHUNK + 4, TILE = 16;
constexpr float MIN_LOG_DECAY = -40.0f;  // exp(-40) is negligible against any state; bounds the sums of logs

// Column `column` of the inverse, 16 rows at a time. `m`: the transpose of M; `x`: the inverse.
__device__ __forceinline__ void substitute(const float* m, float* x, int column) {
    const int above = column / 32 * 2;  // a warp has 32 columns; rows before them are zero
    for (int tile = above; tile < CHUNK / TILE; ++tile) {
        float mine[TILE];
        UNROLL for (int r = 0; r < TILE; ++r) mine[r] = tile * TILE + r == column ? 1.0f : 0.0f;
#pragma unroll 4
        for (int l = above * TILE; l < tile * TILE; ++l) {
            const float known = x[l * CHUNK + column];
            const float* const line = m + l * TRANS_STRIDE + tile * TILE;
            UNROLL for (int r = 0; r < TILE; r += 4) {
                const float4 factor = *(const float4*)(line + r);
                mine[r] = __fmaf_rn(-factor.x, known, mine[r]);
                mine[r + 1] = __fmaf_rn(-factor.y, known, mine[r + 1]);
                mine[r + 2] = __fmaf_rn(-factor.z, known, mine[r + 2]);
                mine[r + 3] = __fmaf_rn(-factor.w, known, mine[r + 3]);
            }
        }
        UNROLL for (int l = 0; l < TILE; ++l) {
            const float* const line = m + (tile * TILE + l) * TRANS_STRIDE + tile * TILE;
            x[(tile * TILE + l) * CHUNK + column] = mine[l];
            UNROLL for (int r = l / 4 * 4; r < TILE; r += 4) {
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
    *(u32*)(matrices + which * MATRIX_SIZE + at) = rounded;
    *(u32*)(matrices + (which + 1) * MATRIX_SIZE + at) = half2_lo(rounded, low, high);
}

extern "C" __global__ void __launch_bounds__(128)
chunk_wy(const unsigned short* prepared, const float* alpha, const float* beta, const float* ssm_a, const float* ssm_dt,
         const int* counts, const int* first, const int* length, unsigned short* matrices, float* gates) {
    launch_dependent_grids();
    extern __shared__ float4 dynamic[];
    u16* const k = (u16*)dynamic;
    u16* const q = k + CHUNK * STRIDE;
    float* const m = (float*)dynamic;  // overwrites k and q once they are multiplied
    float* const x = m + CHUNK * TRANS_STRIDE;
    __shared__ float g_cumsum[CHUNK], betas[CHUNK];
    wait_on_dependent_grids();
    int s = 0, chunk = blockIdx.x, n_rows = 0;
    for (;; ++s) {
        if (s == counts[1]) return;
        n_rows = first[s + 1] - first[s];
        const int n = chunks_of(n_rows, length[s]);
        if (chunk < n) break;
        chunk -= n;
    }
    const int head = blockIdx.y, group = key_head(head), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int n = size_of(chunk, n_rows, length[s]), row = first[s] + start_of(chunk, length[s]);
    constexpr int LINES = KEY_DIM / 8;
    for (int i = threadIdx.x; i < CHUNK * LINES; i += 128) {
        const int r = i / LINES, c = i % LINES * 8;
        const u16* const from = prepared + (size_t)(row + (r < n ? r : 0)) * CHANNELS + group * KEY_DIM + c;
        cp_async_16_zfill(q + r * STRIDE + c, from, r < n);
        cp_async_16_zfill(k + r * STRIDE + c, from + KEY_HEADS * KEY_DIM, r < n);
    }
    cp_async_commit_group();
    float* const of_chunk = gates + ((size_t)blockIdx.x * VALUE_HEADS + head) * N_GATES * CHUNK;
    if (warp == 0) {
        float g[2];
        UNROLL for (int i = 0; i < 2; ++i) {
            const int r = 2 * lane + i;
            const size_t at = (size_t)(row + (r < n ? r : 0)) * VALUE_HEADS + head;
            g[i] = r < n ? fmaxf(log_decay(alpha[at], ssm_a[head], ssm_dt[head]), MIN_LOG_DECAY) : 0.0f;
            betas[r] = r < n ? beta_of(beta[at]) : 0.0f;
            of_chunk[BETA * CHUNK + r] = betas[r];
        }
        float sum = __fadd_rn(g[0], g[1]);
        UNROLL for (int i = 1; i < 32; i *= 2) {
            const float before = __shfl_up_sync(~0u, sum, i);
            if (lane >= i) sum = __fadd_rn(before, sum);
        }
        float upper = __shfl_up_sync(~0u, sum, 1);
        if (lane == 0) upper = 0.0f;
        const float last = __shfl_sync(~0u, sum, 31), lower = __fadd_rn(upper, g[0]);
        g_cumsum[2 * lane] = lower, g_cumsum[2 * lane + 1] = sum;
        of_chunk[DECAY * CHUNK + 2 * lane] = expf(lower), of_chunk[DECAY * CHUNK + 2 * lane + 1] = expf(sum);
        of_chunk[DECAY_TO_END * CHUNK + 2 * lane] = expf(last - lower);
        of_chunk[DECAY_TO_END * CHUNK + 2 * lane + 1] = expf(last - sum);
    }
    cp_async_wait_group<0>();
    __syncthreads();  // k, q and the gates are visible

    float of_k[CHUNK / 8][4], of_q[CHUNK / 8][4];
    clear(of_k), clear(of_q);
    for (int c = 0; c < KEY_DIM; c += 16) {
        u32 from_k[4], from_q[4];
        load_a(from_k, k, STRIDE, warp * TILE, c, lane);
        load_a(from_q, q, STRIDE, warp * TILE, c, lane);
        UNROLL for (int t = 0; t < CHUNK / 16; ++t) {
            if (t > warp) continue;
            u32 b[4];
            load_b(b, k, STRIDE, t * 16, c, lane);
            mma_m16n16k16(of_k + 2 * t, from_k, b);
            mma_m16n16k16(of_q + 2 * t, from_q, b);
        }
    }
    __syncthreads();  // k and q, which M overwrites, were multiplied
    u16* const of_head = matrices + ((size_t)blockIdx.x * VALUE_HEADS + head) * N_MATRICES * MATRIX_SIZE;
    UNROLL for (int t = 0; t < CHUNK / 8; ++t) {
        if (t / 2 > warp) continue;
        UNROLL for (int half = 0; half < 2; ++half) {
            const int i = warp * TILE + lane / 4 + 8 * half, j = t * 8 + lane % 4 * 2;
            float masked[2];
            UNROLL for (int e = 0; e < 2; ++e) {
                const float ratio = i >= j + e ? expf(g_cumsum[i] - g_cumsum[j + e]) : 0.0f;
                masked[e] = ratio * of_q[t][2 * half + e];
                m[(j + e) * TRANS_STRIDE + i] = i > j + e ? betas[i] * ratio * of_k[t][2 * half + e] : 0.0f;
            }
            store_pair(of_head, QK_MASKED, i * CHUNK + j, masked[0], masked[1]);
        }
    }
    __syncthreads();  // M is complete
    if (warp < 2) substitute(m, x, threadIdx.x);
    __syncthreads();  // the inverse is complete
    for (int i = threadIdx.x; i < MATRIX_SIZE / 2; i += 128) {
        const int r = 2 * i / CHUNK, c = 2 * i % CHUNK;
        if (c / TILE > r / TILE) continue;
        const bool known = r / 32 >= c / 32;
        store_pair(of_head, WY_INVERSE, 2 * i, known ? x[2 * i] : 0.0f, known ? x[2 * i + 1] : 0.0f);
    }
}
