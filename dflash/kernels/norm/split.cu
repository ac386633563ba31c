// What a multiply that has a norm BEHIND it (../linear/results.cuh) writes beside its results, of rows that no multiply wrote.
//
// Grid rows, block THREADS, a multiple of 32. Macros: DIM, values of a row. Bytes of a row: 4 * DIM read, 2.25 * DIM written.
#include "../launch.cuh"
#include "../linear/results.cuh"

#ifndef DIM
#error "DIM must be defined"
#endif
constexpr int TILES = (DIM + 15) / 16;

extern "C" __global__ void split_norm(const float* x, const float* gain, unsigned short* halves, float* squares) {
    dependents_may_launch();
    wait_for_inputs();
    const size_t row = blockIdx.x;
    for (int tile = threadIdx.x; tile < TILES; tile += blockDim.x) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
            const int at = tile * 16 + i;
            if (DIM % 16 && at >= DIM) break;
            const float value = x[row * DIM + at];
            halves[row * DIM + at] = half_saturated(__fmul_rn(__fmul_rn(value, gain[at]), NORM_SCALE));
            sum = __fmaf_rn(value, value, sum);
        }
        squares[row * TILES + tile] = sum;
    }
}
