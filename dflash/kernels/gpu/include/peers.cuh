// Signals between the GPUs of a host, which write to each other's memory (peer access).
//
// A block stores its results to every GPU, then calls `signal_peers`. A GPU that reads them first calls `wait_for_peers` with
// the number of signals that each other GPU has sent by then. Counters only grow, so nothing is reset between uses.
// Macros: RANK, the number of this GPU; PEERS, the number of all GPUs.
#pragma once
#include "types.cuh"

#if !defined(RANK) || !defined(PEERS)
#error "RANK and PEERS must be defined"
#endif

// Nanoseconds after which a wait ends the kernel with an error, so that a GPU does not wait forever for one that has failed.
constexpr u64 PEER_TIMEOUT = 10000000000ull;

// Add `n` to the counter of this GPU on every other one, after all earlier stores of the block. Called by all threads.
// `counters`: for each GPU the address of its PEERS counters.
__device__ __forceinline__ void signal_peers(const u64* counters, u64 n) {
    __syncthreads();  // the stores of all threads come before the signal
    if (threadIdx.x < PEERS && threadIdx.x != RANK) {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(counters[threadIdx.x] + 8 * RANK), "l"(n) : "memory");
    }
}

// Wait until every other GPU has sent `n` signals in all; called by at least PEERS threads. A barrier must follow.
// `counters`: the PEERS counters of this GPU.
__device__ __forceinline__ void wait_for_peers(const u64* counters, u64 n) {
    if (threadIdx.x >= PEERS || threadIdx.x == RANK) return;
    u64 sent, start, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
    for (;;) {
        asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(sent) : "l"(counters + threadIdx.x) : "memory");
        if ((long long)(sent - n) >= 0) return;
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
        if (now - start > PEER_TIMEOUT) asm volatile("trap;");
    }
}
