// Copy tokens (float16) to the layout that decode_wide.cu multiplies: for each 256 columns four blocks of 64 columns, a row
// of 128 bytes a token with the swizzle of wgmma. Words of 32 columns are in the order of the weights' fragments
// (quants.cuh), then `sums`, the sums of the tokens' groups (mma_tile.cuh), for formats with minima. Tokens past the last one
// repeat it. With NORM the factors of the tokens' norm are computed, too; see epilogue.cuh.
//
// Grid (width / 256, plus 8 with NORM; ceil(TOKENS / 32)), block 128: a warp takes eight tokens of 256 columns, or the norm of
// one token.
// Macros: QUANT, a format with the RUN and MINIMA that are wanted; TOKENS, rows of a block, a multiple of 8; NORM.
// Bytes: read once, written once.
#include "../formats/mma_tile.cuh"
#include "../gpu/include/pdl.cuh"
#include "epilogue.cuh"

#if !defined(QUANT) || !defined(TOKENS) || !defined(NORM)
#error "QUANT, TOKENS and NORM must be defined"
#endif

using Q = QUANT;
constexpr int COLUMNS = 256, BLOCK_BYTES = TOKENS * 128, UNIT_BYTES = 4 * BLOCK_BYTES + TOKENS * 4 * Q::MINIMA;

// Eight values of lane t of 32 columns, as its B fragments have them.
__device__ __forceinline__ uint4 load_tokens(const u16* columns, int t) {
    if constexpr (Q::RUN == 8) return *(const uint4*)(columns + 8 * t);
    const uint2 low = *(const uint2*)(columns + 4 * t), high = *(const uint2*)(columns + 4 * t + 16);
    return make_uint4(low.x, low.y, high.x, high.y);
}

extern "C" __global__ void __launch_bounds__(128)
arrange(const unsigned short* x, int n_tokens, int width, unsigned char* out, const float* squares, float eps, float scale,
        float* factors) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4, unit = blockIdx.x;
    if (NORM == INPUT_NORM && unit >= width / COLUMNS) {
        const int token = blockIdx.y * 32 + (unit - width / COLUMNS) * 4 + warp;
        const Epilogue to = {scale, nullptr, nullptr, nullptr, (float*)squares, factors, nullptr, nullptr};
        compute_norm_scales(to, width, eps, n_tokens, token, n_tokens, lane);
        return;
    }
    const int n = blockIdx.y * 4 + warp;
    if (n >= TOKENS / 8) return;
    const u16* columns = x + (size_t)min(8 * n + g, n_tokens - 1) * width + unit * COLUMNS;
    u8* to = out + (size_t)unit * UNIT_BYTES;
    uint4 v[8];
    UNROLL for (int j = 0; j < 8; ++j) v[j] = load_tokens(columns + 32 * j, t);
    float d[4];
    clear(d);
    UNROLL for (int j = 0; j < 8; ++j) {
        u8* row = to + j / 2 * BLOCK_BYTES + (8 * n + g) * 128 + 4 * t;
        const u32 words[4] = {v[j].x, v[j].y, v[j].z, v[j].w};
        UNROLL for (int w = 0; w < 4; ++w) *(u32*)(row + ((4 * (j % 2) + w) ^ g) * 16) = words[w];
        if constexpr (Q::MINIMA > 0) add_group<Q>(d, j, v[j], lane);
    }
    if constexpr (Q::MINIMA > 0) store_groups<Q>(d, n, lane, to + 4 * BLOCK_BYTES);
}
