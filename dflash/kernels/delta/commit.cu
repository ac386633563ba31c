// Commit: apply the accepted rows of the previous pass to the states and conv states of all layers. No new token is
// processed.
//
// `arrays`: for each layer the addresses of tail, inputs, state, k, u and decay.
// Grid (VALUE_HEADS * VALUE_DIM / BLOCK_V, sequences or fewer, layers), block STATE_THREADS, shared memory APPLY_ROWS *
// (KEY_DIM + BLOCK_V + 1) floats.
// Macros: those of stored_rows.cuh; TAPS of the conv; BLOCK_V, value rows of a block.
// Bytes: 8 * VALUE_HEADS * VALUE_DIM * KEY_DIM for each layer and sequence with accepted rows.
#define ROWS_PER_THREAD 2
#define MAY_SPILL  // 16 bytes, for states of 128 keys
#include "apply_accepted.cuh"
#include "conv_context.cuh"
#include "stored_rows.cuh"

static_assert(VALUE_DIM % BLOCK_V == 0 && BLOCK_V % 8 == 0, "a warp has 8 value rows");

extern "C" __global__ void __launch_bounds__(STATE_THREADS)
commit(const unsigned long long* arrays, const int* counts, const int* slot, const int* accepted, const int* n_accepted,
       const int* buffer, int slots) {
    const u64* const layer = arrays + 6 * blockIdx.z;
    const int head = blockIdx.x / (VALUE_DIM / BLOCK_V), group = key_head(head), lane = threadIdx.x % LANES;
    const int row = blockIdx.x * BLOCK_V;  // first value row of the block, counted over all heads
    extern __shared__ float4 dynamic[];
    float* const factors = (float*)dynamic + APPLY_ROWS * (KEY_DIM + BLOCK_V);
    for (int s = blockIdx.y; s < counts[1]; s += gridDim.y) {
        const int here = slot[s], n = n_accepted[s];
        if (n == 0) continue;
        const size_t old = (size_t)(buffer[s] * slots + here) * STORED_ROWS;
        const size_t own_row = (size_t)here * VALUE_HEADS * VALUE_DIM + row + threadIdx.x / LANES * ROWS_PER_THREAD;
        float* const committed = (float*)layer[2] + own_row * KEY_DIM;
        State own;
        own.load(committed, lane);
        AcceptedRows ids;
        ids.load(accepted + s * PENDING);
        const ApplyAccepted before{ids,
                                   n,
                                   (const float*)layer[3] + (old * KEY_HEADS + group) * KEY_DIM,
                                   (const float*)layer[4] + old * VALUE_HEADS * VALUE_DIM + row,
                                   (const float*)layer[5] + old * VALUE_HEADS + head,
                                   (float*)dynamic,
                                   factors};
        before.fetch(0);
        before.apply(own, lane);
        own.store(committed, lane);
        float* const tail = (float*)layer[0] + (size_t)here * (TAPS - 1) * CHANNELS;
        const ConvContext context{tail, (const float*)layer[1] + old * CHANNELS, accepted + s * PENDING, n};
        for (int c = blockIdx.x * STATE_THREADS + threadIdx.x; c < CHANNELS; c += gridDim.x * STATE_THREADS) {
            float inputs_above[TAPS - 1];
            UNROLL for (int t = 1; t < TAPS; ++t) inputs_above[t - 1] = context.at(t, c);
            UNROLL for (int t = 1; t < TAPS; ++t) tail[(size_t)(TAPS - 1 - t) * CHANNELS + c] = inputs_above[t - 1];
        }
        __syncthreads();  // the next sequence reuses the shared memory
    }
}
