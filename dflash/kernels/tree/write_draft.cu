// Write drafts that are on the device into the batch of the next forward pass, below the root rows of their sequences. The
// host has filled these rows with placeholders.
//
// Grid (drafts), block 64, no shared memory: a thread writes one node. A sequence takes as many nodes as it has rows besides
// its root. `low`, `high`: see slot_order.cuh. Bytes: 32 a node.
// The next kernel must not start before this one has ended: kernels of a pass read the batch before
// `wait_on_dependent_grids`.
#include "slot_order.cuh"

extern "C" __global__ void __launch_bounds__(64)
write_draft(const int* draft_tokens, const int* parents, const int* depths, unsigned long long low,
            unsigned long long high, const int* first, const int* length, int* tokens, int* parent, int* depth,
            int* position) {
    const int s = batch_sequence(blockIdx.x, low, high), from = 64 * blockIdx.x + threadIdx.x;
    if (s == NO_SEQUENCE) return;
    const int row = first[s] + 1 + threadIdx.x;
    if (row >= first[s + 1]) return;
    tokens[row] = draft_tokens[from];
    parent[row] = parents[from] + 1;
    depth[row] = depths[from];
    position[row] = length[s] + depths[from];
}
