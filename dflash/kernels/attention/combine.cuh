// Split-KV: combine the partial results of the splits of a row. With m the largest score of all splits and w = exp(m_split -
// m): out = sum(w * values) / sum(w * sum of weights), times sigmoid(gate) if GATED.
//
// A block handles 1 KiB of the values of a row, for the GROUP_SIZE heads that share a KV head. WAYS threads go through the
// splits of a 16-byte line; their sums are added in order. Grid (LINES / 64 rounded up, KV_HEADS, rows), block 256, shared
// memory about 4 KiB and 4 * GROUP_SIZE * MAX_SPLITS bytes (static).
// Macros: HEAD_DIM, GROUP_SIZE, KV_HEADS, the shape of the heads; MAX_SPLITS; GATED. Bytes: 4 * HEAD_DIM for each split of
// each row and query head.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/signals.cuh"
#include "../gpu/include/warp.cuh"
#include "partial_layout.cuh"

#if !defined(HEAD_DIM) || !defined(GROUP_SIZE) || !defined(GATED)
#error "HEAD_DIM, GROUP_SIZE and GATED must be defined"
#endif

constexpr int WAYS = 4, SPLITS_PER_WAY = (MAX_SPLITS + WAYS - 1) / WAYS, LINES = GROUP_SIZE * HEAD_DIM / 4,
              SPLITS_PER_LANE = (MAX_SPLITS + 31) / 32;

// Called by all threads of a block, with the same number of splits, at least one. `peers`: where the results of a tensor
// split go, in place of `out`.
__device__ __forceinline__ void combine_splits(int n_splits, const float* gate, const float* partial, const float* stats,
                                               u16* out, const PeerTable* peers = nullptr) {
    __shared__ float weights[GROUP_SIZE][MAX_SPLITS], totals[GROUP_SIZE];
    __shared__ float4 acc[WAYS][64];
    const int head = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int line = blockIdx.x * 64 + threadIdx.x % 64, way = threadIdx.x / 64, group = line / 2 % GROUP_SIZE;
    const size_t begin = partial_at(row, head, 0);
    const bool active = line < LINES;
    float4 o[SPLITS_PER_WAY];
    UNROLL for (int i = 0; i < SPLITS_PER_WAY; ++i) {
        const int split = i * WAYS + way;
        o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (active && split < n_splits) o[i] = *(const float4*)(partial + ((begin + split) * LINES + line) * 4);
    }
    const size_t at = ((size_t)row * KV_HEADS + head) * GROUP_SIZE + group;
    const int d = line / (2 * GROUP_SIZE) * 8 + line % 2 * 4;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (GATED && active && way == 0) g = *(const float4*)(gate + (2 * at + 1) * HEAD_DIM + d);

    const float minus_infinity = __int_as_float(0xff800000), scale = 1.4426950408889634f / sqrtf((float)HEAD_DIM);
    for (int j = warp; j < GROUP_SIZE; j += 8) {
        float2 own[SPLITS_PER_LANE];
        float max_score = minus_infinity, total = 0.0f;
        UNROLL for (int i = 0; i < SPLITS_PER_LANE; ++i) {
            const int split = lane + 32 * i;
            own[i] = split < n_splits ? *(const float2*)(stats + 2 * ((begin + split) * GROUP_SIZE + j))
                                      : make_float2(minus_infinity, 0.0f);
            max_score = fmaxf(max_score, own[i].x);
        }
        max_score = warp_max(max_score);
        UNROLL for (int i = 0; i < SPLITS_PER_LANE; ++i) {
            const float weight = exp2_approx(__fsub_rn(__fmul_rn(own[i].x, scale), __fmul_rn(max_score, scale)));
            if (lane + 32 * i < n_splits) weights[j][lane + 32 * i] = weight;
            total = __fmaf_rn(own[i].y, weight, total);
        }
        total = warp_sum(total);
        if (lane == 0) totals[j] = total;
    }
    __syncthreads();  // weights and totals are complete
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    UNROLL for (int i = 0; i < SPLITS_PER_WAY; ++i) {
        const int split = i * WAYS + way;
        if (split >= n_splits) continue;
        const float w = weights[group][split];
        x.x = __fmaf_rn(o[i].x, w, x.x), x.y = __fmaf_rn(o[i].y, w, x.y);
        x.z = __fmaf_rn(o[i].z, w, x.z), x.w = __fmaf_rn(o[i].w, w, x.w);
    }
    acc[way][threadIdx.x % 64] = x;
    __syncthreads();  // the sums of all ways are stored
    if (way > 0 || !active) return;
    UNROLL for (int i = 1; i < WAYS; ++i) {
        const float4 y = acc[i][threadIdx.x];
        x.x = __fadd_rn(x.x, y.x), x.y = __fadd_rn(x.y, y.y), x.z = __fadd_rn(x.z, y.z), x.w = __fadd_rn(x.w, y.w);
    }
    const float total = totals[group];
    const auto rounded = [&](float value, float of_gate) -> u32 {
        value = __fdiv_rn(value, total);
        return half_saturated(GATED ? mul_sigmoid_rn(value, of_gate) : value);
    };
    const uint2 halves =
        make_uint2(rounded(x.x, g.x) | rounded(x.y, g.y) << 16, rounded(x.z, g.z) | rounded(x.w, g.w) << 16);
#if PEERS
    const size_t to = (at + (size_t)row * (PEERS - 1) * KV_HEADS * GROUP_SIZE) * HEAD_DIM + d;
    UNROLL for (int p = 0; p < PEERS; ++p) store_to_peer((uint2*)((u16*)peers->outs[p] + to), halves);
#else
    *(uint2*)(out + at * HEAD_DIM + d) = halves;
#endif
}
