// Copy columns that this GPU has computed to all GPUs of a tensor split (all-gather), and wait for theirs.
//
// Each piece is a number of columns of an array, in ranges: column range i of the source goes to `step` * i bytes behind the
// first one of each target. When the kernel ends, the columns of all GPUs are in this GPU's array.
// Grid: any number of blocks, the same on all GPUs; block 256, no shared memory. Macros: RANK, PEERS, see signals.cuh; UNIT,
// bytes that a thread copies, 2 to 16, which divide all sizes and addresses.
// `counters`: for each GPU the address of its counters; `arrived`: those of this GPU; `expected`: signals that each other
// GPU has sent in all before this launch. Bytes: those of the piece, read once and written PEERS times.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/signals.cuh"

#ifndef UNIT
#error "UNIT must be defined"
#endif

template <int N>
struct Bytes;
template <>
struct Bytes<2> { using type = u16; };
template <>
struct Bytes<4> { using type = u32; };
template <>
struct Bytes<8> { using type = uint2; };
template <>
struct Bytes<16> { using type = uint4; };
using Unit = Bytes<UNIT>::type;

// One piece; all sizes are in units. A target that is null is not written.
struct Piece {
    u64 source, source_stride, size, ranges, step, stride, targets[PEERS];
};

extern "C" __global__ void __launch_bounds__(256)
exchange(const unsigned long long* pieces, int n_pieces, int n_rows, const unsigned long long* counters,
         const unsigned long long* arrived, unsigned long long* expected) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    for (int p = 0; p < n_pieces; ++p) {
        const Piece& piece = ((const Piece*)pieces)[p];
        const u32 size = piece.size, width = size * (u32)piece.ranges, total = width * n_rows;
        for (u32 i = blockIdx.x * 256 + threadIdx.x; i < total; i += gridDim.x * 256) {
            const u32 row = i / width, column = i % width;
            const Unit value = ((const Unit*)piece.source)[row * piece.source_stride + column];
            const u64 at = row * piece.stride + column / size * piece.step + column % size;
            UNROLL for (int d = 0; d < PEERS; ++d) {
                if (piece.targets[d]) ((Unit*)piece.targets[d])[at] = value;
            }
        }
    }
    signal_peers(counters, 1);
    if (blockIdx.x > 0) return;
    const u64 n = *expected + gridDim.x;
    wait_for_peers(arrived, n);
    __syncthreads();  // all GPUs have written, and all threads have read `expected`
    if (threadIdx.x == 0) *expected = n;
}
