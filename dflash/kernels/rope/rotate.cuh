// Rows of a paged cache, for the kernels that write rotated heads to one; head.cuh has the formula.
//
// Macros: those of head.cuh.
#pragma once
#include "../gpu/include/pdl.cuh"
#include "head.cuh"

constexpr int PAGE = 256, WARPS = 4;  // rows of a cache page; warps of a block

// Row of the paged cache for row `row` of the batch.
__device__ __forceinline__ size_t cache_row(int row, const int* first, const int* sequence, const int* length,
                                            const int* pages, int max_pages) {
    const int s = sequence[row], index = length[s] + row - first[s];
    return (size_t)pages[(size_t)s * max_pages + index / PAGE] * PAGE + index % PAGE;
}
