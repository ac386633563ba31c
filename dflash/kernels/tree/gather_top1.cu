// Gather the first candidate of each row of `ids`: out[i] = ids[i * apart]. It is -1 (no token) for a row without
// candidates.
//
// Grid 1, block: a thread for each row, no shared memory. Bytes: 8 a row.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void gather_top1(const int* ids, int apart, int* out, int n_rows) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (threadIdx.x < n_rows) out[threadIdx.x] = ids[threadIdx.x * apart];
}
