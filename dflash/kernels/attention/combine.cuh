// out = values / sum of weights, of the parts of a row's text, times sigmoid(gate).
//
// A block takes 1 KiB of the values of a row and the GROUP heads that share a head of the cache; WAYS threads go through the
// parts of a line, which are added up in order. Grid (LINES / 64, KV, rows), block 256.
// Bytes: 4 * HEAD for each part of each row and head. Macros: HEAD, GROUP, KV, SPLITS, GATED.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/warp.cuh"
#include "place.cuh"

#if !defined(HEAD) || !defined(GROUP) || !defined(GATED)
#error "HEAD, GROUP and GATED must be defined"
#endif

constexpr int WAYS = 4, EACH = (SPLITS + WAYS - 1) / WAYS, LINES = GROUP * HEAD / 4, OWN = (SPLITS + 31) / 32;

// All threads call it, with the same number of parts, one or more.
__device__ __forceinline__ void combine_parts(int parts, const float* gate, const float* partial, const float* stats, u16* out) {
    __shared__ float weights[GROUP][SPLITS], totals[GROUP];
    __shared__ float4 sums[WAYS][64];
    const int head = blockIdx.y, row = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int line = blockIdx.x * 64 + threadIdx.x % 64, way = threadIdx.x / 64, group = line / 2 % GROUP;
    const size_t begin = part_at(row, head, 0);
    const bool works = line < LINES;
    float4 o[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int part = i * WAYS + way;
        o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (works && part < parts) o[i] = *(const float4*)(partial + ((begin + part) * LINES + line) * 4);
    }
    const size_t at = ((size_t)row * KV + head) * GROUP + group;
    const int d = line / (2 * GROUP) * 8 + line % 2 * 4;
    float4 g = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (GATED && works && way == 0) g = *(const float4*)(gate + (2 * at + 1) * HEAD + d);

    const float nothing = __int_as_float(0xff800000), scale = 1.4426950408889634f / sqrtf((float)HEAD);
    for (int j = warp; j < GROUP; j += 8) {
        float2 own[OWN];
        float top = nothing, total = 0.0f;
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const int part = lane + 32 * i;
            own[i] = part < parts ? *(const float2*)(stats + 2 * ((begin + part) * GROUP + j)) : make_float2(nothing, 0.0f);
            top = fmaxf(top, own[i].x);
        }
        top = warp_max(top);
#pragma unroll
        for (int i = 0; i < OWN; ++i) {
            const float weight = exp2_approx(__fsub_rn(__fmul_rn(own[i].x, scale), __fmul_rn(top, scale)));
            if (lane + 32 * i < parts) weights[j][lane + 32 * i] = weight;
            total = __fmaf_rn(own[i].y, weight, total);
        }
        total = warp_sum(total);
        if (lane == 0) totals[j] = total;
    }
    __syncthreads();
    float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int part = i * WAYS + way;
        if (part >= parts) continue;
        const float w = weights[group][part];
        x.x = __fmaf_rn(o[i].x, w, x.x), x.y = __fmaf_rn(o[i].y, w, x.y);
        x.z = __fmaf_rn(o[i].z, w, x.z), x.w = __fmaf_rn(o[i].w, w, x.w);
    }
    sums[way][threadIdx.x % 64] = x;
    __syncthreads();
    if (way > 0 || !works) return;
#pragma unroll
    for (int i = 1; i < WAYS; ++i) {
        const float4 y = sums[i][threadIdx.x];
        x.x = __fadd_rn(x.x, y.x), x.y = __fadd_rn(x.y, y.y), x.z = __fadd_rn(x.z, y.z), x.w = __fadd_rn(x.w, y.w);
    }
    const float total = totals[group];
    const auto rounded = [&](float value, float of_gate) -> u32 {
        value = __fdiv_rn(value, total);
        return half_saturated(GATED ? mul_sigmoid_rn(value, of_gate) : value);
    };
    *(uint2*)(out + at * HEAD + d) = make_uint2(rounded(x.x, g.x) | rounded(x.y, g.y) << 16,
                                                rounded(x.z, g.z) | rounded(x.w, g.w) << 16);
}
