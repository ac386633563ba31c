// Unit length of a row's query and key, by a warp: factors that give k unit length and q length KEY_DIM^-0.5, and q . k.
//
// Macros: KEY_DIM.
#pragma once
#include "../gpu/include/types.cuh"
#include "../gpu/include/warp.cuh"

constexpr int KEYS_PER_LANE = (KEY_DIM + 31) / 32;  // channels 32 * i + lane of q and of k; those from KEY_DIM on are 0

struct UnitKeys {
    float of_q, of_k, dot;

    // `q`, `k`: the lane's channels after SiLU.
    __device__ __forceinline__ UnitKeys(const float* q, const float* k) {
        float qq = 0.0f, kk = 0.0f, qk = 0.0f;
        UNROLL for (int i = 0; i < KEYS_PER_LANE; ++i) {
            qq = __fmaf_rn(q[i], q[i], qq), kk = __fmaf_rn(k[i], k[i], kk), qk = __fmaf_rn(q[i], k[i], qk);
        }
        qq = warp_sum(qq), kk = warp_sum(kk), dot = warp_sum(qk);
        of_q = __fmul_rn(rsqrtf((float)KEY_DIM), rsqrtf(qq + 1e-6f)), of_k = rsqrtf(kk + 1e-6f);
    }
    __device__ __forceinline__ float product() const { return __fmul_rn(__fmul_rn(dot, of_q), of_k); }
};
