// Put rows of several arrays aside, to be read later.
//
// Grid (arrays, rows), block 256. Macros: DIM, values of a row. sources: the arrays' addresses, whose rows from `first` on go to
// `out` (arrays, room, DIM), from `at` on. Bytes: 8 * DIM each.
#include "../gpu/include/pdl.cuh"

#ifndef DIM
#error "DIM must be defined"
#endif
static_assert(DIM % 4 == 0, "rows are whole vectors");

extern "C" __global__ void __launch_bounds__(256)
keep(const unsigned long long* sources, int first, float* out, int room, int at) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const float4* from = (const float4*)((const float*)sources[blockIdx.x] + (size_t)(first + blockIdx.y) * DIM);
    float4* to = (float4*)(out + ((size_t)blockIdx.x * room + at + blockIdx.y) * DIM);
    for (int i = threadIdx.x; i < DIM / 4; i += 256) to[i] = from[i];
}
