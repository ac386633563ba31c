// Hadamard matrix of heads whose keys are stored in 4 bits: x = H x / sqrt(HEAD_DIM), where H[i][j] is -1 if i and j have an odd
// number of one bits in common, else 1. It changes no product of a query with a key.
//
// Macros: those of head.cuh; HEAD_DIM is a power of two.
#pragma once
#include "head.cuh"

static_assert((HEAD_DIM & (HEAD_DIM - 1)) == 0 && VECTORS_PER_LANE <= 2, "HEAD_DIM must be 32, 64, 128 or 256");

// Called by a whole warp. Sums and differences of elements 1, 2, 4, ... apart, in this order: of a vector, of lanes, of the
// vectors of a lane.
__device__ __forceinline__ void mix(float4 (&x)[VECTORS_PER_LANE], int lane) {
    constexpr int LANES = VECTORS < 32 ? VECTORS : 32;
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i) {
        const float a = __fadd_rn(x[i].x, x[i].y), b = __fsub_rn(x[i].x, x[i].y);
        const float c = __fadd_rn(x[i].z, x[i].w), d = __fsub_rn(x[i].z, x[i].w);
        x[i] = make_float4(__fadd_rn(a, c), __fadd_rn(b, d), __fsub_rn(a, c), __fsub_rn(b, d));
        UNROLL for (int by = 1; by < LANES; by *= 2) {
            const auto exchanged = [&](float own) {
                const float other = __shfl_xor_sync(~0u, own, by);
                return lane & by ? __fsub_rn(other, own) : __fadd_rn(own, other);
            };
            x[i] = make_float4(exchanged(x[i].x), exchanged(x[i].y), exchanged(x[i].z), exchanged(x[i].w));
        }
    }
    if constexpr (VECTORS_PER_LANE == 2) {
        const float4 a = x[0], b = x[1];
        x[0] = make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
        x[1] = make_float4(__fsub_rn(a.x, b.x), __fsub_rn(a.y, b.y), __fsub_rn(a.z, b.z), __fsub_rn(a.w, b.w));
    }
    const float scale = 1.0f / sqrtf((float)HEAD_DIM);
    UNROLL for (int i = 0; i < VECTORS_PER_LANE; ++i)
        x[i] = make_float4(__fmul_rn(x[i].x, scale), __fmul_rn(x[i].y, scale), __fmul_rn(x[i].z, scale),
                           __fmul_rn(x[i].w, scale));
}
