// Put together what `attend` left of the parts of a pending row's text. See combine.cuh for the grid and the block.
// Macros: HEAD, GROUP, KV, SPLITS, GATED.
#include "../gpu/include/pdl.cuh"
#include "parts.cuh"
#include "combine.cuh"

extern "C" __global__ void __launch_bounds__(256)
combine(const int* counts, const int* first, const int* sequence, const int* length, const float* gate, const float* partial,
        const float* stats, unsigned short* out) {
    launch_dependent_grids();
    const int row = blockIdx.z;
    int parts = 0;
    if (row < counts[0]) {
        const int s = sequence[row];
        parts = parts_of(length[s] + row - first[s]);
    }
    wait_on_dependent_grids();
    if (parts > 0) combine_parts(parts, gate, partial, stats, out);
}
