// Set the position of each row's sampling parameters: one after that of the row of the batch.
//
// Grid 1, block a thread for each row. The parameters of a row are `words` integers, of which number `where` is the position.
extern "C" __global__ void set_positions(const int* position, int* laws, int words, int where, int n_rows) {
    if (threadIdx.x < n_rows) laws[threadIdx.x * words + where] = position[threadIdx.x] + 1;
}
