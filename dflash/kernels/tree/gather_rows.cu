// Gather rows from anywhere: row i at the address `out` is the row at the i-th address.
//
// Grid (rows), block 256, no shared memory. Macros: MODEL_DIM, elements of a row. Bytes: 8 * MODEL_DIM a row.
#include "../gpu/include/pdl.cuh"

#ifndef MODEL_DIM
#error "MODEL_DIM must be defined"
#endif
static_assert(MODEL_DIM % 4 == 0, "rows are whole vectors");

extern "C" __global__ void __launch_bounds__(256) gather_rows(const unsigned long long* addresses, unsigned long long out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const float4* source = (const float4*)addresses[blockIdx.x];
    for (int i = threadIdx.x; i < MODEL_DIM / 4; i += 256)
        ((float4*)out)[(size_t)blockIdx.x * (MODEL_DIM / 4) + i] = source[i];
}
