// Embedding lookup in a packed table: out[i] = scale * table[tokens[i]], dequantised to float32. With scale 1 the result is
// exactly the value that the format defines.
//
// Grid (rows), block: at most 4 threads for each 32 weights of a row; no shared memory. Macros: those of lookup.cuh.
// Bytes of a row: about twice its packed size read (the tiles interleave 16 rows), 4 * MODEL_DIM written.
#include "../gpu/include/pdl.cuh"
#include "lookup.cuh"

extern "C" __global__ void embed(const int* tokens, const unsigned char* table, float* out, int n_known, float scale) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    float* row = out + (size_t)blockIdx.x * MODEL_DIM;
    look_up(tokens[blockIdx.x], table, n_known, scale, [&](int at, float4 values) { *(float4*)(row + at) = values; });
}
