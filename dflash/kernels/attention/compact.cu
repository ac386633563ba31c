// Move the keys and values of accepted rows to their final cache positions: row accepted[j] of a sequence goes to position
// length + j.
//
// A thread moves the same 16 bytes of all rows of a path, IN_FLIGHT rows at a time. A row never moves to a later position.
// So rows that are read after IN_FLIGHT writes have not been overwritten by these.
// Grid (16-byte lines of a position / 128 rounded up, layers * 2, sequences), block 128, no shared memory. `k_lines`, `v_lines`:
// 16-byte lines of a position of keys and of values; `places`: positions of all pages. Bytes: 2 * (k_lines + v_lines) * 16 for
// each row that moves.
#include "../gpu/include/types.cuh"

constexpr int PAGE = 256, PENDING = 64, IN_FLIGHT = 8;

extern "C" __global__ void __launch_bounds__(128)
compact(unsigned char* k, unsigned char* v, int k_lines, int v_lines, unsigned long long places, const int* pages,
        int max_pages, const int* length, const int* accepted, const int* n_accepted) {
    const int s = blockIdx.z, line = blockIdx.x * 128 + threadIdx.x, n = n_accepted[s];
    const int lines = blockIdx.y % 2 ? v_lines : k_lines;
    if (line >= lines) return;
    uint4* cache = (uint4*)(blockIdx.y % 2 ? v : k) + blockIdx.y / 2 * places * lines + line;
    const int* page = pages + (size_t)s * max_pages;
    const int* path = accepted + s * PENDING;
    const auto cache_line = [&](int row) {
        const int index = length[s] + row;
        return ((size_t)page[index / PAGE] * PAGE + index % PAGE) * lines;
    };
    for (int j = 0; j < n; j += IN_FLIGHT) {
        uint4 moved[IN_FLIGHT];
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            if (j + i < n && path[j + i] != j + i) moved[i] = cache[cache_line(path[j + i])];
        }
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            if (j + i < n && path[j + i] != j + i) cache[cache_line(j + i)] = moved[i];
        }
    }
}
