// Start of a pass: embeddings, their RMS norm as float16, and the rotary angles, each with the operations of embed.cu,
// rms_norm.cu and angles.cu.
//
// Grid (rows, 2): the blocks (row, 0) look a row up and norm it, the blocks (row, 1) compute its angles. Block THREADS, shared
// memory: a row (static). Macros: those of lookup.cuh and row.cuh; ROW_DIM is MODEL_DIM.
// Bytes of a row: those of embed.cu, 2 * MODEL_DIM of the norm, and 8 * pairs.
#include "../gpu/include/pdl.cuh"
#include "../norm/row.cuh"
#include "../rope/angles.cuh"
#include "lookup.cuh"

static_assert(ROW_DIM == MODEL_DIM, "the norm is that of an embedding");

extern "C" __global__ void __launch_bounds__(THREADS)
pass_start(const int* tokens, const unsigned char* table, float* out, int n_known, float scale, const float* weight,
           unsigned short* half, float eps, const int* position, const float* inv_freq, float gain, int pairs, float* cosines,
           float* sines) {
    launch_dependent_grids();
    if (blockIdx.y == 1) {
        wait_on_dependent_grids();
        store_angles(blockIdx.x, position[blockIdx.x], inv_freq, gain, pairs, cosines, sines);
        return;
    }
    __shared__ float4 embedding[MODEL_DIM / 4];
    const RowGains gains(weight);
    wait_on_dependent_grids();
    const size_t start = (size_t)blockIdx.x * N_VECTORS;
    look_up(tokens[blockIdx.x], table, n_known, scale, [&](int at, float4 values) {
        embedding[at / 4] = ((float4*)out)[start + at / 4] = values;
    });
    __syncthreads();  // the row is stored
    RowVector row[PER_THREAD];
    const float factor = load_row(row, (const RowVector*)embedding, eps);
    store_row(row, factor, gains, (RowHalves*)half + start, nullptr);
}
