// Embedding lookup in a packed table: out[i] = scale * table[tokens[i]], dequantised to float32. With scale 1 the result is
// exactly the value that the format defines.
//
// Grid (rows), block: at most 4 threads for each 32 weights of a row; no shared memory. Macros: QUANT, the format;
// MODEL_DIM, weights of a row. A token outside the table (`n_known` rows) gives zeros.
// Bytes of a row: about twice its packed size read (the tiles interleave 16 rows), 4 * MODEL_DIM written.
#include "../formats/values.cuh"
#include "../gpu/include/pdl.cuh"

#if !defined(QUANT) || !defined(MODEL_DIM)
#error "QUANT and MODEL_DIM must be defined"
#endif
using Q = QUANT;
static_assert(MODEL_DIM % 16 == 0, "rows are whole vectors");

constexpr int BLOCKS_PER_TILE = Q::TILE_K / 32, TILES = (MODEL_DIM + Q::TILE_K - 1) / Q::TILE_K;

extern "C" __global__ void embed(const int* tokens, const unsigned char* table, float* out, int n_known, float scale) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int token = tokens[blockIdx.x];
    const bool in_table = (unsigned)token < (unsigned)n_known;
    const u8* tiles = table + (size_t)(token / 16) * TILES * Q::BYTES;
    float* row = out + (size_t)blockIdx.x * MODEL_DIM;
    for (int i = threadIdx.x; i < (MODEL_DIM + 31) / 32 * 4; i += blockDim.x) {
        const int block = i / 4, t = i % 4;
        float values[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (in_table)
            tile_values<Q>(tiles + (size_t)(block / BLOCKS_PER_TILE) * Q::BYTES, token % 16, block % BLOCKS_PER_TILE, t,
                           values);
        UNROLL for (int j = 0; j < 8; j += 4) {
            const int at = 32 * block + lane_weight<Q::RUN>(t, j);
            if (MODEL_DIM % 32 && at >= MODEL_DIM) continue;
            float4 scaled = make_float4(values[j], values[j + 1], values[j + 2], values[j + 3]);
            scaled.x *= scale, scaled.y *= scale, scaled.z *= scale, scaled.w *= scale;
            *(float4*)(row + at) = scaled;
        }
    }
}
