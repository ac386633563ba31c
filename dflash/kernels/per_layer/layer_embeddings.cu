// Embeddings of a token for all layers: out = (rms(projected) * weight + token_part) / sqrt(2), with an RMS norm over the
// LAYER_DIM elements of each layer, in place of `projected`.
//
// A warp handles a layer of a row. Grid (LAYERS / 8 rounded up, rows), block 256, no shared memory. Macros: LAYERS; LAYER_DIM,
// a multiple of 16. Bytes: 12 an element.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(LAYERS) || !defined(LAYER_DIM)
#error "LAYERS and LAYER_DIM must be defined"
#endif

extern "C" __global__ void __launch_bounds__(256)
layer_embeddings(float* projected, const float* token_part, const float* weight, float eps) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int layer = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (layer >= LAYERS) return;
    const size_t start = ((size_t)blockIdx.y * LAYERS + layer) * LAYER_DIM;
    float squares = 0.0f;
    for (int i = lane; i < LAYER_DIM; i += 32) squares = __fmaf_rn(projected[start + i], projected[start + i], squares);
    const float factor = __frsqrt_rn(warp_sum(squares) / LAYER_DIM + eps);
    for (int i = lane; i < LAYER_DIM; i += 32) {
        projected[start + i] = __fmaf_rn(projected[start + i] * factor, weight[i], token_part[start + i]) * 0.70710678f;
    }
}
