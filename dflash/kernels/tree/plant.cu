// Lay grown guesses into the batch of a pass, under the roots of some sequences, in place of what the host has written there.
//
// Grid guesses, block 64: as many nodes as the sequence has rows beside its root. low, high: see order.cuh. The next kernel may
// not begin before this one is done: those of a pass read the batch before they wait.
// Bytes: 32 a node.
#include "order.cuh"

extern "C" __global__ void __launch_bounds__(64)
plant(const int* guesses, const int* parents, const int* depths, unsigned long long low, unsigned long long high,
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
