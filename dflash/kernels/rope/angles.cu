// Rotary angles of each row: cosines and sines of float(position) * inv_freq, times `gain`.
//
// The angle is one float32 product. Sine and cosine are computed in float64 and rounded to float32.
// Grid (rows), block 32 to 128, no shared memory. `pairs`: rotated pairs of a head. Bytes: 8 * pairs written a row.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void __launch_bounds__(128)
angles(const int* position, const float* inv_freq, float gain, int pairs, float* cosines, float* sines) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const size_t row = blockIdx.x;
    const float float_position = (float)position[row];
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        double sine, cosine;
        sincos((double)__fmul_rn(float_position, inv_freq[j]), &sine, &cosine);
        cosines[row * pairs + j] = __fmul_rn((float)cosine, gain);
        sines[row * pairs + j] = __fmul_rn((float)sine, gain);
    }
}
