// Set the position in the sampling parameters (`row_params`) of each row: one after the row's position in the batch.
//
// Grid 1, block: a thread for each row, no shared memory. The parameters of a row are `words` integers; integer `where` is
// the position. Bytes: 8 a row.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void set_positions(const int* position, int* row_params, int words, int where, int n_rows) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (threadIdx.x < n_rows) row_params[threadIdx.x * words + where] = position[threadIdx.x] + 1;
}
