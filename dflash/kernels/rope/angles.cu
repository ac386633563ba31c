// cos and sin of float(position) * inv_freq, one float32 product, exact to float32, times a gain.
//
// Grid rows, block 32 to 128.
#include "../gpu/include/pdl.cuh"

extern "C" __global__ void __launch_bounds__(128)
angles(const int* position, const float* inv_freq, float gain, int pairs, float* cosines, float* sines) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const size_t row = blockIdx.x;
    const float at = (float)position[row];
    for (int j = threadIdx.x; j < pairs; j += blockDim.x) {
        double sine, cosine;
        sincos((double)__fmul_rn(at, inv_freq[j]), &sine, &cosine);
        cosines[row * pairs + j] = __fmul_rn((float)cosine, gain);
        sines[row * pairs + j] = __fmul_rn((float)sine, gain);
    }
}
