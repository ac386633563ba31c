// Begin a pass: count the signals of the pass before.
//
// Grid 1, block 1, no shared memory. `base`: signals that each other GPU had sent before this pass; `n`: those of a pass.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void advance(unsigned long long* base, unsigned long long n) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    *base += n;
}
