// Logits of suppressed tokens, in place: x = minus infinity.
//
// Grid (rows), block 128, no shared memory. `width`: elements of a row; `ids`: `n` columns. Bytes: 4 for each of them.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void __launch_bounds__(128) suppress(float* x, int width, const int* ids, int n) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    for (int i = threadIdx.x; i < n; i += 128) x[(size_t)blockIdx.x * width + ids[i]] = __int_as_float(0xff800000);
}
