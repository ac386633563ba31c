// Apply kept rows to the states and the tails of all layers, reading no token.
//
// `arrays` holds, of each layer, the addresses of tail, inputs, state, k, u and decay.
//
// Grid (HEADS * VALUES / OWN, sequences or fewer, layers), block THREADS, shared KEPT_ROOM * (WIDTH + OWN + 1) floats.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value; TAPS; OWN, value rows of a
// block.
// Bytes: 8 * HEADS * VALUES * WIDTH a layer and sequence that kept rows.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES) || !defined(TAPS) || !defined(OWN)
#error "GROUPS, HEADS, WIDTH, VALUES, TAPS and OWN must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES, PENDING = 64;
constexpr int ROWS = 2, LANES = 8, THREADS = OWN / ROWS * LANES, APPLIERS = THREADS;
static_assert(VALUES % OWN == 0 && OWN % 8 == 0, "a warp has 8 value rows");
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/ptx.cuh"
#include "../conv/above.cuh"
#include "state.cuh"
#include "kept.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) flush(
    const unsigned long long* arrays, const int* counts, const int* slot, const int* kept, const int* n_kept,
    const int* side, int slots) {
    const u64* const layer = arrays + 6 * blockIdx.z;
    const int head = blockIdx.x / (VALUES / OWN), group = head % GROUPS, lane = threadIdx.x % LANES;
    const int row = blockIdx.x * OWN;  // of all heads' values, the block's first
    extern __shared__ float4 dynamic[];
    float* const factors = (float*)dynamic + KEPT_ROOM * (WIDTH + OWN);
    for (int s = blockIdx.y; s < counts[1]; s += gridDim.y) {
        const int here = slot[s], n = n_kept[s];
        if (n == 0) continue;
        const size_t old = (size_t)(side[s] * slots + here) * PENDING;
        const size_t own_row = (size_t)here * HEADS * VALUES + row + threadIdx.x / LANES * ROWS;
        float* const committed = (float*)layer[2] + own_row * WIDTH;
        State own;
        own.load(committed, lane);
        Ids ids;
        ids.load(kept + s * PENDING);
        const Kept before{ids, n, (const float*)layer[3] + (old * GROUPS + group) * WIDTH,
                          (const float*)layer[4] + old * HEADS * VALUES + row, (const float*)layer[5] + old * HEADS + head,
                          (float*)dynamic, factors};
        before.fetch(0);
        before.apply(own, lane);
        own.store(committed, lane);
        float* const tail = (float*)layer[0] + (size_t)here * (TAPS - 1) * CHANNELS;
        const Above above{tail, (const float*)layer[1] + old * CHANNELS, kept + s * PENDING, n};
        for (int c = blockIdx.x * THREADS + threadIdx.x; c < CHANNELS; c += gridDim.x * THREADS) {
            float inputs_above[TAPS - 1];
#pragma unroll
            for (int t = 1; t < TAPS; ++t) inputs_above[t - 1] = above.at(t, c);
#pragma unroll
            for (int t = 1; t < TAPS; ++t) tail[(size_t)(TAPS - 1 - t) * CHANNELS + c] = inputs_above[t - 1];
        }
        __syncthreads();  // what the next sequence kept comes to the same place
    }
}
