// Concatenate the captured hidden states of several layers for a drafter: out[i] = [array_0[row[i]], array_1[row[i]], ...].
//
// Grid (arrays, rows), block 256, no shared memory. Macros: MODEL_DIM, elements of a row; TO_HALF, 1 to convert to float16,
// 0 to keep float32. `sources`: addresses of the arrays. `row`: source row of each output row; the first counts[which]
// output rows are written. Bytes: 6 * MODEL_DIM a row and array as float16, 8 * MODEL_DIM as float32.
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"

#if !defined(MODEL_DIM) || !defined(TO_HALF)
#error "MODEL_DIM and TO_HALF must be defined"
#endif
static_assert(MODEL_DIM % 4 == 0, "rows are whole vectors");

extern "C" __global__ void __launch_bounds__(256)
features(const unsigned long long* sources, const int* counts, int which, const int* row, unsigned char* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (blockIdx.y >= counts[which]) return;
    const float4* source = (const float4*)((const float*)sources[blockIdx.x] + (size_t)row[blockIdx.y] * MODEL_DIM);
    const size_t target = ((size_t)blockIdx.y * gridDim.x + blockIdx.x) * (MODEL_DIM / 4);
    for (int i = threadIdx.x; i < MODEL_DIM / 4; i += 256) {
        const float4 x = source[i];
        if (TO_HALF) {
            ((uint2*)out)[target + i] = half4_saturated(x.x, x.y, x.z, x.w);
        } else {
            ((float4*)out)[target + i] = x;
        }
    }
}
