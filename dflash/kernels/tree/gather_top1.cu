// Gather the first candidate of each row of `ids`: out[i] = ids[i * apart]. It is -1 (no token) for a row without
// candidates. `targets`, if not null, maps draft tokens to target tokens.
//
// Grid 1, block: a thread for each row, no shared memory. Bytes: 8 a row.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void gather_top1(const int* ids, int apart, const int* targets, int* out, int n_rows) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (threadIdx.x >= n_rows) return;
    const int id = ids[threadIdx.x * apart];
    out[threadIdx.x] = targets && id >= 0 ? targets[id] : id;
}
