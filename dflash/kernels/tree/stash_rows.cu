// Copy rows of several arrays to a buffer for a later pass.
//
// Grid (arrays, rows), block 256, no shared memory. Macro: MODEL_DIM, elements of a row. `sources`: addresses of the arrays.
// Their rows from `first` on go to `out`, (arrays, room, MODEL_DIM), from row `at` on. Bytes: 8 * MODEL_DIM a
// row.
#include "../gpu/include/pdl.cuh"

#ifndef MODEL_DIM
#error "MODEL_DIM must be defined"
#endif
static_assert(MODEL_DIM % 4 == 0, "rows are whole vectors");

extern "C" __global__ void __launch_bounds__(256)
stash_rows(const unsigned long long* sources, int first, float* out, int room, int at) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const float4* source = (const float4*)((const float*)sources[blockIdx.x] + (size_t)(first + blockIdx.y) * MODEL_DIM);
    float4* target = (float4*)(out + ((size_t)blockIdx.x * room + at + blockIdx.y) * MODEL_DIM);
    for (int i = threadIdx.x; i < MODEL_DIM / 4; i += 256) target[i] = source[i];
}
