// Sum of a row's expert outputs times their factors. The order is fixed: the expert with the largest logit first, a shared
// expert last.
#pragma once
#include "../gpu/include/types.cuh"

template <int SLOTS, class Product>
__device__ __forceinline__ float combine(const float (&factors)[SLOTS], Product product) {
    float total = 0.0f;
    UNROLL for (int slot = 0; slot < SLOTS; ++slot) total = __fmaf_rn(factors[slot], product(slot), total);
    return total;
}
