// Positions of laws: the one after that of the row of the batch which the law is for.
//
// Grid 1, block a thread for each row. A law is `words` numbers, of which `where` is the position.
extern "C" __global__ void place(const int* position, int* laws, int words, int where, int n_rows) {
    if (threadIdx.x < n_rows) laws[threadIdx.x * words + where] = position[threadIdx.x] + 1;
}
