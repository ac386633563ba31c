// End a pass: clear what its last multiply has read from other GPUs; see flags_in_data.cuh.
//
// Grid: any number of blocks; block 256, no shared memory. Bytes: `row_bytes` for each row of the batch.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/early_read.cuh"

extern "C" __global__ void __launch_bounds__(256)
clear(unsigned char* array, int row_bytes, const int* rows) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    clear_published(array, *rows * row_bytes, blockIdx.x * 256 + threadIdx.x, gridDim.x * 256);
}
