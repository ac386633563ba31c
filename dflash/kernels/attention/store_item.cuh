// Split-KV: store the partial result of a work item of decode_scheduler.cuh for `combine`.
//
// Macros: those of online_softmax.cuh and partial_layout.cuh.
#pragma once
#include "decode_scheduler.cuh"
#include "store_partial.cuh"

// Store the sums of a thread's two queries for `combine`.
__device__ __forceinline__ void store_partial(const Item& item, const Softmax& acc, float* partial, float* stats) {
    const int row = query_index(threadIdx.x % 2) / GROUP_SIZE;
    const bool needed = item.split < n_splits_of(item.kv.committed + item.own + row);
    store_partial(item.queries, item.split, needed, acc, partial, stats);
}
