// Lookup of a row of a packed table by a block of threads: scale * table[token], dequantised to float32.
//
// Macros: QUANT, the format; MODEL_DIM, weights of a row. A token outside the table (`n_known` rows) gives zeros.
#pragma once
#include "../formats/values.cuh"

#if !defined(QUANT) || !defined(MODEL_DIM)
#error "QUANT and MODEL_DIM must be defined"
#endif
static_assert(MODEL_DIM % 16 == 0, "rows are whole vectors");

// Call `store` with each column that is a multiple of four, and its four values. Called by all threads of a block.
template <class Store>
__device__ __forceinline__ void look_up(int token, const u8* table, int n_known, float scale, Store store) {
    using Q = QUANT;
    constexpr int BLOCKS_PER_TILE = Q::TILE_K / 32, TILES = (MODEL_DIM + Q::TILE_K - 1) / Q::TILE_K;
    const bool in_table = (unsigned)token < (unsigned)n_known;
    const u8* tiles = table + (size_t)(token / 16) * TILES * Q::BYTES;
    for (int i = threadIdx.x; i < (MODEL_DIM + 31) / 32 * 4; i += blockDim.x) {
        const int block = i / 4, t = i % 4;
        float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (in_table)
            tile_values<Q>(tiles + (size_t)(block / BLOCKS_PER_TILE) * Q::BYTES, token % 16, block % BLOCKS_PER_TILE, t,
                           values);
        UNROLL for (int j = 0; j < 8; j += 4) {
            const int at = 32 * block + lane_weight<Q::RUN>(t, j);
            if (MODEL_DIM % 32 && at >= MODEL_DIM) continue;
            store(at, make_float4(values[j] * scale, values[j + 1] * scale, values[j + 2] * scale, values[j + 3] * scale));
        }
    }
}
