// Lay grown guesses into the batch of a pass, under the root of each sequence, in place of what the host has written there.
//
// Grid sequences, block 64: as many nodes as the sequence has rows beside its root. The next kernel may not begin before this
// one is done: those of a pass read the batch before they wait.
// Bytes: 32 a node.
extern "C" __global__ void __launch_bounds__(64)
plant(const int* guesses, const int* parents, const int* depths, const int* first, const int* length, int* tokens, int* parent,
      int* depth, int* position) {
    const int s = blockIdx.x, i = threadIdx.x, row = first[s] + 1 + i;
    if (row >= first[s + 1]) return;
    tokens[row] = guesses[64 * s + i];
    parent[row] = parents[64 * s + i] + 1;
    depth[row] = depths[64 * s + i];
    position[row] = length[s] + depths[64 * s + i];
}
