// Shared by the kernels over rows of logits: sampling parameters of a row, the order of its tokens, and reductions of a
// block.
//
// Macros: VOCAB, tokens of a row; THREADS, threads of a block; optionally MAX_TOP, capacity of `RowLogprobs`.
#pragma once

#include "../gpu/include/types.cuh"

#if !defined(VOCAB) || !defined(THREADS)
#error "VOCAB and THREADS must be defined"
#endif
static_assert(THREADS % 32 == 0 && THREADS <= 1024, "a block is made of warps");

constexpr float MIN_SCALED = -26.1f;  // a scaled logit below this cannot win against the largest: the noise is bounded
constexpr int GROUP = 128, GROUPS = (VOCAB + GROUP - 1) / GROUP, WARPS = THREADS / 32;

// Sampling parameters of a row; cuda_layout.py has the same layout.
struct SampleParams {
    float scale, floor;  // inverse temperature, 0 for greedy; min-p as the lowest scaled logit
    int top_k;           // 0 for no limit
    u32 position;
    u64 seed;
    double top_p;
    int n_top, unused;  // most probable tokens to report; -1 for no log probabilities
    const u32* mask;    // bit `token % 32` of word `token / 32` is set if the token is allowed; null allows all
};

#ifdef MAX_TOP
// Log probabilities of a row, with its MAX_TOP most probable tokens; cuda_layout.py has the same layout.
struct RowLogprobs {
    u64 total;  // sum of exp(logit - largest), in units of 2^-44
    float largest, sampled_logit;
    int ids[MAX_TOP];
    float values[MAX_TOP];
};
#endif

// True if a mask allows a token; null allows all.
__device__ __forceinline__ bool allows(const u32* mask, u32 token) { return !mask || mask[token / 32] >> token % 32 & 1; }
// True if top-k excludes tokens.
__device__ __forceinline__ bool has_top_k(const SampleParams& params) { return params.top_k > 0 && params.top_k < VOCAB; }
// True if a token is sampled with top-k or top-p.
__device__ __forceinline__ bool is_truncated(const SampleParams& params) {
    return params.scale > 0.0f && (has_top_k(params) || params.top_p < 1.0);
}

// Rank of a logit: an unsigned integer in the order of the floats. Both zeros have one rank. NaN and minus infinity have
// rank 0.
__device__ __forceinline__ u32 rank_of(float x) {
    const u32 bits = __float_as_uint(x);
    const u32 rank = bits == 0x80000000u ? bits : bits >> 31 ? ~bits : bits | 0x80000000u;
    return x > __int_as_float(0xff800000) ? rank : 0;
}

// True if nothing can be sampled: the largest logit is NaN or infinite.
__device__ __forceinline__ bool is_invalid(float highest) { return !(fabsf(highest) < __int_as_float(0x7f800000)); }

// Inverse of `rank_of`.
__device__ __forceinline__ float logit_of_rank(u32 rank) { return __uint_as_float(rank >> 31 ? rank & 0x7fffffffu : ~rank); }

// Key of a token whose maximum is the best token: a larger rank first, then a lower token. 0: no token.
__device__ __forceinline__ u64 max_key(u32 rank, u32 token) { return rank ? (u64)rank << 32 | (u32)~token : 0; }
__device__ __forceinline__ int token_of(u64 key) { return key ? (int)~(u32)key : -1; }
// Store the token of a row, also in pinned host memory at the address `host_ids` unless it is 0.
__device__ __forceinline__ void store_token(int* ids, u64 host_ids, int row, int token) {
    ids[row] = token;
    if (host_ids) ((int*)host_ids)[row] = token;
}
__device__ __forceinline__ u64 larger_key(u64 a, u64 b) { return a > b ? a : b; }

__device__ __forceinline__ u64 warp_max_key(u64 key) {
    const u32 rank = __reduce_max_sync(~0u, (u32)(key >> 32));
    const u32 token = __reduce_max_sync(~0u, (u32)(key >> 32) == rank ? (u32)key : 0);
    return (u64)rank << 32 | token;
}

// Maximum over the block, valid in the first warp.
__device__ __forceinline__ u64 block_max_key(u64 key) {
    __shared__ u64 warp_keys[WARPS];
    key = warp_max_key(key);
    if (threadIdx.x % 32 == 0) warp_keys[threadIdx.x / 32] = key;
    __syncthreads();  // the keys of all warps are stored
    return threadIdx.x < 32 ? warp_max_key(threadIdx.x < WARPS ? warp_keys[threadIdx.x] : 0) : 0;
}

// Maximum over the blocks of a row. One thread of each block passes the block's key. The last one to arrive receives the
// maximum in `found` and true; the others receive false.
__device__ __forceinline__ bool row_max_key(u64* row_key, u32* arrived, int blocks, u64 key, u64& found) {
    if (key) atomicMax(row_key, key);
    __threadfence();  // publish this block's key and results before it counts as arrived
    if (atomicAdd(arrived, 1) != blocks - 1) return false;
    __threadfence();  // read those of the other blocks after their arrival
    found = atomicExch(row_key, 0ull);
    *arrived = 0;
    return true;
}

// Scaled logit in float32, bit for bit as on the CPU.
__device__ __forceinline__ float scaled(float x, float highest, float scale) {
    return __fmul_rn(__fsub_rn(x, highest), scale);
}
