// Where partial sums lie between the kernel that makes them and `combine`.
#pragma once

#if !defined(SPLITS) || !defined(KV)
#error "SPLITS and KV must be defined"
#endif

// Where the sums of a part of a row's text lie for the GROUP heads that share a head of the cache: the values as (HEAD / 8,
// GROUP, 8), for a warp holds eight columns of eight heads, and (GROUP, 2) the largest score and the sum of weights.
__device__ __forceinline__ size_t part_at(int row, int head, int part) {
    return ((size_t)row * KV + head) * SPLITS + part;
}
