// GELU of a gate times values: out = half(gelu(rms(x) * gate) * values * INNER_SCALE), rms(x) = sqrt(mean(x ** 2) + eps). The
// gate was computed from x / rms(x), since x may be too large for float16.
//
// Grid (rows), block 256, shared memory: 8 floats (static). Macros: X_DIM, elements of a row of x; GATES, gates of a row.
// `values`: GATES of each row, `stride` elements from one row to the next. Bytes of a row: 4 * X_DIM + 10 * GATES.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(X_DIM) || !defined(GATES)
#error "X_DIM and GATES must be defined"
#endif

extern "C" __global__ void __launch_bounds__(256)
gelu_gate(const float* x, float eps, const float* gate, const float* values, int first, int stride, unsigned short* out) {
    __shared__ float of_warp[8];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const size_t row = blockIdx.x;
    float squares = 0.0f;
    for (int i = threadIdx.x; i < X_DIM; i += 256) squares = __fmaf_rn(x[row * X_DIM + i], x[row * X_DIM + i], squares);
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = squares;
    __syncthreads();  // the sums of all warps are stored
    squares = 0.0f;
    UNROLL for (int i = 0; i < 8; ++i) squares = __fadd_rn(squares, of_warp[i]);
    const float rms = sqrtf(squares / X_DIM + eps);
    for (int i = threadIdx.x; i < GATES; i += 256) {
        const float value = gelu(gate[row * GATES + i] * rms) * values[row * stride + first + i];
        out[row * GATES + i] = half_saturated(__fmul_rn(value, INNER_SCALE));
    }
}
