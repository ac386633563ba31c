// Move the keys and values of accepted rows to where their text stands: row kept[j] of a sequence goes to length + j.
//
// A thread moves the same 16 bytes of all rows of a path, MANY at a time: a row never comes from before where it goes, so what
// was read before MANY writes was not written by them.
//
// Grid (parts of a position, layers * 2, sequences), block 128. Bytes: 4 * KV * HEAD elements for each row that moves.
// `lines` are those of 16 bytes in a position, `stride` those in a layer.
constexpr int PAGE = 256, PENDING = 64, MANY = 8;

extern "C" __global__ void __launch_bounds__(128)
compact(unsigned char* k, unsigned char* v, int lines, unsigned long long stride, const int* pages, int max_pages,
        const int* length, const int* kept, const int* n_kept) {
    const int s = blockIdx.z, line = blockIdx.x * 128 + threadIdx.x, n = n_kept[s];
    if (line >= lines) return;
    uint4* cache = (uint4*)(blockIdx.y % 2 ? v : k) + blockIdx.y / 2 * stride + line;
    const int* page = pages + (size_t)s * max_pages;
    const int* path = kept + s * PENDING;
    const auto place = [&](int row) {
        const int index = length[s] + row;
        return ((size_t)page[index / PAGE] * PAGE + index % PAGE) * lines;
    };
    for (int j = 0; j < n; j += MANY) {
        uint4 moved[MANY];
#pragma unroll
        for (int i = 0; i < MANY; ++i) {
            if (j + i < n && path[j + i] != j + i) moved[i] = cache[place(path[j + i])];
        }
#pragma unroll
        for (int i = 0; i < MANY; ++i) {
            if (j + i < n && path[j + i] != j + i) cache[place(j + i)] = moved[i];
        }
    }
}
