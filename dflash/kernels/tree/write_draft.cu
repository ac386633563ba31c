// Write drafts from the device into the batch of a pass, under the roots of their sequences, over what the host has written there.
//
// Grid drafts, block 64: as many nodes as the sequence has rows besides its root. `low`, `high`: see slot_order.cuh. The next kernel
// must not start before this one is done: kernels of a pass read the batch before they wait. Bytes: 32 a node.
#include "slot_order.cuh"

extern "C" __global__ void __launch_bounds__(64)
write_draft(const int* guesses, const int* parents, const int* depths, unsigned long long low, unsigned long long high,
            const int* first, const int* length, int* tokens, int* parent, int* depth, int* position) {
    const int s = which(blockIdx.x, low, high), from = 64 * blockIdx.x + threadIdx.x;
    if (s == NOWHERE) return;
    const int row = first[s] + 1 + threadIdx.x;
    if (row >= first[s + 1]) return;
    tokens[row] = guesses[from];
    parent[row] = parents[from] + 1;
    depth[row] = depths[from];
    position[row] = length[s] + depths[from];
}
