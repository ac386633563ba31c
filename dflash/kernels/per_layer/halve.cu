// Scaled copy of rows as float16: out = half(x * scale), clamped to [-65504, 65504].
//
// Grid (width / 1024 rounded up, rows), block 256, no shared memory. A thread handles four elements of a row. `width`: elements
// of a row, a multiple of 4. Bytes: 6 an element.
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void __launch_bounds__(256) halve(const float* x, int width, float scale, unsigned short* out) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int at = (blockIdx.x * 256 + threadIdx.x) * 4;
    if (at >= width) return;
    const size_t start = (size_t)blockIdx.y * width + at;
    const float4 v = *(const float4*)(x + start);
    *(uint2*)(out + start) =
        half4_saturated(__fmul_rn(v.x, scale), __fmul_rn(v.y, scale), __fmul_rn(v.z, scale), __fmul_rn(v.w, scale));
}
