// Layout of the partial results between an attention kernel and `combine`. Macros: MAX_SPLITS, capacity of splits of a row;
// KV_HEADS.
#pragma once

#if !defined(MAX_SPLITS) || !defined(KV_HEADS)
#error "MAX_SPLITS and KV_HEADS must be defined"
#endif

// Index of a split of a row for the GROUP_SIZE heads that share KV head `head`. Outputs are (HEAD_DIM / 8, GROUP_SIZE, 8),
// since a warp holds eight columns of eight heads. Statistics are (GROUP_SIZE, 2): the largest score and the sum of weights.
__device__ __forceinline__ size_t partial_at(int row, int head, int split) {
    return ((size_t)row * KV_HEADS + head) * MAX_SPLITS + split;
}
