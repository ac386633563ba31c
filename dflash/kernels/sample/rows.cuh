// Shared by the kernels over rows of logits: sampling parameters of a row, the order of its tokens, and reductions of a block.
//
// Macros: VOCAB, tokens of a row; THREADS, of a block.
#pragma once

#include "../gpu/include/types.cuh"

#if !defined(VOCAB) || !defined(THREADS)
#error "VOCAB and THREADS must be defined"
#endif
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of warps");

constexpr float MIN_SCALED = -26.1f;  // a scaled logit below this loses to the largest, whatever the noise
constexpr int GROUP = 128, GROUPS = (VOCAB + GROUP - 1) / GROUP, WARPS = THREADS / 32;

// How a token is drawn from a row; `LAW` in cuda.py is the same.
struct SampleParams {
    float scale, floor;  // inverse temperature, 0 takes the largest; lowest scaled logit
    int top_k;           // 0 keeps all
    u32 position;
    u64 seed;
    double top_p;
    int n_top, unused;  // likeliest tokens to report; -1 for no log-probabilities
};

__device__ __forceinline__ bool by_rank(const SampleParams& law) { return law.top_k > 0 && law.top_k < VOCAB; }
__device__ __forceinline__ bool selects(const SampleParams& law) {
    return law.scale > 0.0f && (by_rank(law) || law.top_p < 1.0);
}

// Unsigned order of floats; 0 stands for NaN and minus infinity. Both zeros are one.
__device__ __forceinline__ u32 rank_of(float x) {
    const u32 bits = __float_as_uint(x);
    const u32 rank = bits == 0x80000000u ? bits : bits >> 31 ? ~bits : bits | 0x80000000u;
    return x > __int_as_float(0xff800000) ? rank : 0;
}

// True if nothing can be sampled: the largest logit is NaN or infinite.
__device__ __forceinline__ bool is_invalid(float highest) { return !(fabsf(highest) < __int_as_float(0x7f800000)); }

__device__ __forceinline__ float value_of(u32 rank) { return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank); }

// The larger the better; of equals the lowest token.
__device__ __forceinline__ u64 claim(u32 rank, u32 token) { return rank ? (u64)rank << 32 | (u32)~token : 0; }
__device__ __forceinline__ int token_of(u64 claim) { return claim ? (int)~(u32)claim : -1; }
__device__ __forceinline__ u64 better(u64 a, u64 b) { return a > b ? a : b; }

__device__ __forceinline__ u64 best_of_warp(u64 mine) {
    const u32 rank = __reduce_max_sync(~0u, (u32)(mine >> 32));
    const u32 token = __reduce_max_sync(~0u, (u32)(mine >> 32) == rank ? (u32)mine : 0);
    return (u64)rank << 32 | token;
}

// Known to the first warp.
__device__ __forceinline__ u64 best_of_block(u64 mine) {
    __shared__ u64 bests[WARPS];
    mine = best_of_warp(mine);
    if (threadIdx.x % 32 == 0) bests[threadIdx.x / 32] = mine;
    __syncthreads();
    return threadIdx.x < 32 ? best_of_warp(threadIdx.x < WARPS ? bests[threadIdx.x] : 0) : 0;
}

// One thread of each block of a row gives its claim; the one that comes last gets the best of all, the others 0 and false.
__device__ __forceinline__ bool best_of_row(u64* best, u32* arrived, int blocks, u64 mine, u64& found) {
    if (mine) atomicMax(best, mine);
    __threadfence();
    if (atomicAdd(arrived, 1) != blocks - 1) return false;
    __threadfence();
    found = atomicExch(best, 0ull);
    *arrived = 0;
    return true;
}

// In float32, exactly as on the CPU.
__device__ __forceinline__ float scaled(float x, float highest, float scale) { return __fmul_rn(__fsub_rn(x, highest), scale); }
