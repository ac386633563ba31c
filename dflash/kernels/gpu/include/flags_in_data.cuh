// Results of other GPUs without signals: readers see in the data that it has arrived. For kernels with PEER_DATA, see signals.cuh.
//
// The entries of gathered arrays are EMPTY (early_read.cuh) until they are written, and readers wait until none is. Rows that
// the batch does not have are neither sent nor awaited. A multiply clears what the multiply before it has read. Every launch
// that sends depends on all results of the exchange before. So other GPUs write an array again only after a later exchange of
// this GPU, and so after the clearing, if three other exchanges lie between two uses of an array.
#pragma once
#include "signals.cuh"
#include "early_read.cuh"
#include "system_loads.cuh"

#if PEERS && PEER_DATA
// Begin or go on with a wait; ends the kernel with an error if it takes too long. `start`: 0 at first.
__device__ __forceinline__ void check_peer_timeout(u64& start) {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (!start) start = now;
    if (now - start > PEER_TIMEOUT) asm volatile("trap;");
}

// Read until `load`, which reads a thread's entries, returns true because none is EMPTY.
template <class Load>
__device__ __forceinline__ void poll_peers(Load load) {
    u64 start = 0;
    while (!load()) check_peer_timeout(start);
}

// Number of rows of the batch, at most `n_rows`. Known before earlier kernels have ended.
__device__ __forceinline__ int rows_of_batch(const u64* table, int n_rows) {
    return min(n_rows, *(const volatile int*)table[0]);
}

// Wait until no float16 of columns `first` to `past`, multiples of 8, of the first `rows` rows is EMPTY; called by all threads
// of a block. A barrier must follow. All values are loaded first, then only missing ones again.
__device__ __forceinline__ void wait_for_halves(const u16* from, int width, int rows, int first, int past) {
    constexpr int IN_FLIGHT = 4;
    const int lines = (past - first) / 8, total = rows * lines;
    u64 start = 0;
    for (int begin = threadIdx.x; begin < total; begin += IN_FLIGHT * blockDim.x) {
        const u16* at[IN_FLIGHT];
        uint4 v[IN_FLIGHT];
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            const int line = min(begin + i * (int)blockDim.x, total - 1);
            at[i] = from + (size_t)(line / lines) * width + first + line % lines * 8;
            v[i] = load_system_16(at[i]);
        }
        UNROLL for (int i = 0; i < IN_FLIGHT; ++i) {
            while (!all_halves_written(v[i])) {
                check_peer_timeout(start);
                v[i] = load_system_16(at[i]);
            }
        }
    }
}

// Clear the first `rows` rows of what an earlier launch has read; called by all threads, after `wait_on_dependent_grids`.
__device__ __forceinline__ void clear_rows(const PeerTable& table, int rows) {
    const int first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    UNROLL for (int i = 0; i < 2; ++i)
        clear_published((void*)table.cleared[i], rows * (int)table.cleared_bytes[i], first, step);
}
#endif
