// Combine the splits of draft rows that `block_attend` has stored (split-KV). attention/combine.cuh has the formula, grid
// and block.
//
// Macros: HEAD_DIM, GROUP_SIZE, KV_HEADS, the shape of the heads; MAX_SPLITS; TILE_KV, RING_SIZE and WINDOW as for
// `block_attend`. Bytes: those of attention/combine.cuh.
#define GATED 0
#include "../gpu/include/pdl.cuh"
#include "split_kv.cuh"
#include "../attention/combine.cuh"

extern "C" __global__ void __launch_bounds__(256)
combine(const int* counts, const int* first, const int* begin, const int* length, const float* partial,
        const float* stats, unsigned short* out) {
    launch_dependent_grids();
    const int row = blockIdx.z, sequences = counts[1];
    // index of the row's sequence: the number of sequences that begin at or before the row, minus 1
    int s = -1;
    for (int i = threadIdx.x % 32; i - (int)threadIdx.x % 32 < sequences; i += 32) {
        s += __popc(__ballot_sync(~0u, i < sequences && first[i] <= row));
    }
    const bool active = s >= 0 && row < first[sequences];
    const int n_splits = active ? SequenceTiles({first, begin, length}, s).n_splits : 0;
    wait_on_dependent_grids();
    if (active) combine_splits(n_splits, nullptr, partial, stats, out);
}
