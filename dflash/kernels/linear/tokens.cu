// Tokens as `decode.cu` reads them: halves in the order of B fragments, and the sums of their 16s.
//
// A token is divided by the power of two that brings its largest value below 2^8 (`unit` holds it), so no half overflows.
// Tokens lie in eights; 256 values of eight tokens are nine lines of 512 bytes: eight of 32 values each, where lane
// 4 * g + t holds values 4 * t.. of each 16 of token g, and one of sums, where it holds those of 16s 4 * t.., rounded to
// half, and what the rounding left out.
//
// Grid tokens, block 256. Bytes: 4 * width read twice, 2.25 * width written, for each token.
#include "../formats/half.cuh"

extern "C" __global__ void tokens(const float* x, int stride, int width, unsigned char* lines, float* unit) {
    __shared__ float largest[8];
    const float* from = x + (size_t)blockIdx.x * stride;
    float most = 0.0f;
    for (int i = threadIdx.x; i < width; i += 256) most = fmaxf(most, fabsf(from[i]));
#pragma unroll
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) most = fmaxf(most, largest[i]);
    const int exponent = min(max((__float_as_int(most) >> 23) - 134, -100), 100);
    const float down = __int_as_float(127 - exponent << 23);
    if (threadIdx.x == 0) unit[blockIdx.x] = __int_as_float(127 + exponent << 23);

    const int eights = (width + 255) / 256, g = blockIdx.x % 8;
    u8* to = lines + (size_t)(blockIdx.x / 8) * eights * 4608;
    for (int c = threadIdx.x; c < eights * 16; c += 256) {
        u8* part = to + (size_t)(c / 16) * 4608;
        float sum = 0.0f;
#pragma unroll
        for (int t = 0; t < 4; ++t) {
            u16 h[4];
#pragma unroll
            for (int e = 0; e < 4; ++e) {
                const int k = 16 * c + 4 * t + e;
                h[e] = to_half(k < width ? __fmul_rn(from[k], down) : 0.0f);
                sum = __fadd_rn(sum, to_float(h[e]));
            }
            *(uint2*)(part + c % 16 / 2 * 512 + (4 * g + t) * 16 + c % 2 * 8) =
                make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
        }
        u16* sums = (u16*)(part + 8 * 512 + (4 * g + c % 16 / 4) * 16);
        const u16 high = to_half(sum);
        sums[c % 4] = high;
        sums[4 + c % 4] = to_half(__fsub_rn(sum, to_float(high)));
    }
}
