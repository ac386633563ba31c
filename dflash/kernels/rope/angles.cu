// Rotary angles of each row; angles.cuh has the formula.
//
// Grid (rows), block 32 to 128, no shared memory. `pairs`: rotated pairs of a head. Bytes: 8 * pairs written a row.
#include "../gpu/include/pdl.cuh"
#include "angles.cuh"

extern "C" __global__ void __launch_bounds__(128)
angles(const int* position, const float* inv_freq, float gain, int pairs, float* cosines, float* sines) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    store_angles(blockIdx.x, position[blockIdx.x], inv_freq, gain, pairs, cosines, sines);
}
