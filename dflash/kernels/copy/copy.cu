// Copy `from` to `to` with streaming loads and stores of 16 bytes, eight in flight per thread. Benchmarks measure this
// kernel's bandwidth and compare other kernels with it.
//
// Grid (bytes / 32768), block 256, no shared memory. The size must be a multiple of 32 KiB. Bytes: each byte is read once
// and written once.
#include "../gpu/include/types.cuh"

extern "C" __global__ void copy(const float* from, float* to) {
    const float4* source = (const float4*)from + (size_t)blockIdx.x * 2048 + threadIdx.x;
    float4* target = (float4*)to + (size_t)blockIdx.x * 2048 + threadIdx.x;
    float4 v[8];
    UNROLL for (int i = 0; i < 8; ++i) v[i] = __ldcs(source + 256 * i);
    UNROLL for (int i = 0; i < 8; ++i) __stcs(target + 256 * i, v[i]);
}
