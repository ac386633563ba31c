// Rows of several arrays, one after the other in a row of halves: what a draft reads of the layers that its target showed.
//
// Grid (features, rows), block 256. Macros: DIM, values of a row. sources: the arrays' addresses; row: which row of them goes
// where, for the first counts[0]. Bytes: 6 * DIM each.
#include "../formats/half.cuh"
#include "../launch.cuh"

#ifndef DIM
#error "DIM must be defined"
#endif
static_assert(DIM % 4 == 0, "rows are whole vectors");

extern "C" __global__ void __launch_bounds__(256)
features(const unsigned long long* sources, const int* counts, const int* row, unsigned short* out) {
    dependents_may_launch();
    wait_for_inputs();
    if (blockIdx.y >= counts[0]) return;
    const float4* from = (const float4*)((const float*)sources[blockIdx.x] + (size_t)row[blockIdx.y] * DIM);
    uint2* to = (uint2*)(out + ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * DIM);
    for (int i = threadIdx.x; i < DIM / 4; i += 256) {
        const float4 x = from[i];
        to[i] = make_uint2(half_saturated(x.x) | (u32)half_saturated(x.y) << 16,
                           half_saturated(x.z) | (u32)half_saturated(x.w) << 16);
    }
}
