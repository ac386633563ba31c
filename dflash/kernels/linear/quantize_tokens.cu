// Round tokens to int8 for prefill_hopper.cu: each 256 columns of a token, rotated (formats/rotated_bytes.cuh), in units of a
// 127th of their largest absolute value. Columns past the token are zeros.
//
// Grid tokens, block 32 * WARPS: a warp rounds every WARPS-th 256 columns. `width`: of a token, a multiple of 8; rows of `out`
// have whole blocks of 256. Scale of block b of a token: scales[b * stride + token]. Bytes: 2 a value read, 1 written.
#include "../formats/rotated_bytes.cuh"
#include "../gpu/include/pdl.cuh"

constexpr int WARPS = 4, BLOCK = 256;

extern "C" __global__ void __launch_bounds__(32 * WARPS)
quantize_tokens(const unsigned short* x, unsigned char* out, float* scales, int stride, int width) {
    wait_on_dependent_grids();
    launch_dependent_grids();
    const int lane = threadIdx.x % 32, blocks = (width + BLOCK - 1) / BLOCK;
    const size_t token = blockIdx.x;
    for (int block = threadIdx.x / 32; block < blocks; block += WARPS) {
        const int column = block * BLOCK + 8 * lane;
        uint4 halves = make_uint4(0, 0, 0, 0);
        if (column < width) halves = *(const uint4*)(x + token * width + column);
        const u32 words[4] = {halves.x, halves.y, halves.z, halves.w};
        float v[8], largest = 0.0f;
        UNROLL for (int i = 0; i < 8; ++i) v[i] = to_float((u16)(words[i / 2] >> 16 * (i % 2)));
        rotate(v, lane);
        UNROLL for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
        UNROLL for (int i = 16; i; i /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, i));
        const float factor = largest > 0.0f ? __fdiv_rn(127.0f, largest) : 0.0f;
        const uint2 bytes = make_uint2(four_bytes(v, factor), four_bytes(v + 4, factor));
        *(uint2*)(out + (token * blocks + block) * BLOCK + 8 * lane) = bytes;
        if (lane == 0) scales[(size_t)block * stride + token] = __fmul_rn(largest, 1.0f / 127.0f);
    }
}
