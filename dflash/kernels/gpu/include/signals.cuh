// Results and signals between the GPUs of a host, which write to each other's memory (peer access).
//
// A block stores its results to every GPU, then calls `signal_peers`. A GPU that reads them first calls `wait_for_peers` with
// the number of signals that each other GPU has sent by then. Counters only grow, so nothing is reset between uses.
//
// With PEER_DATA no signals are sent, so that no block waits for its stores to arrive; readers see in the data that it has
// arrived, see flags_in_data.cuh.
//
// Macros: PEERS, the number of all GPUs, or 0 for a kernel that stores nothing elsewhere; RANK, the number of this GPU;
// PEER_DATA, 0 by default.
#pragma once
#include "types.cuh"

#ifndef PEERS
#define PEERS 0
#endif
#ifndef PEER_DATA
#define PEER_DATA 0
#endif

struct PeerTable;

// Store a result on a GPU.
template <class T>
__device__ __forceinline__ void store_to_peer(T* to, T v) {
#if PEER_DATA
    if constexpr (sizeof(T) == 2) {
        asm volatile("st.relaxed.sys.global.u16 [%0], %1;" ::"l"(to), "h"(*(const u16*)&v) : "memory");
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(*(const u32*)&v) : "memory");
    } else {
        const uint2 words = *(const uint2*)&v;
        asm volatile("st.relaxed.sys.global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(words.x), "r"(words.y) : "memory");
    }
#else
    *to = v;
#endif
}

#if PEERS
#ifndef RANK
#error "RANK must be defined"
#endif

// Nanoseconds after which a wait ends the kernel with an error, so that a GPU does not wait forever for one that has failed.
constexpr u64 PEER_TIMEOUT = 10000000000ull;

// Inputs and outputs of a kernel on other GPUs.
struct PeerTable {
#if PEER_DATA
    u64 rows;                                  // address of the number of rows of the batch, an int
    u64 cleared[2], cleared_bytes[2];          // arrays to clear, and bytes of a row of each
#else
    u64 arrived;                               // address of this GPU's counters, one for each GPU
    u64 base;                                  // address of the number of signals that each GPU had sent before this pass
    u64 before;                                // signals of this pass to wait for, 0 for none
#endif
    u64 stride, stride_2;                      // elements from one row to the next of the arrays below
#if !PEER_DATA
    u64 counters[PEERS];                       // for each GPU the address of its counters
#endif
    u64 outs[PEERS], outs_2[PEERS];            // for each GPU the addresses of this GPU's first column of two arrays
};

// Copy a table to shared memory; a barrier must follow.
__device__ __forceinline__ void load_peers(PeerTable& to, const u64* table) {
    if (threadIdx.x < sizeof(PeerTable) / 8) ((u64*)&to)[threadIdx.x] = table[threadIdx.x];
}

#if !PEER_DATA
// Add `n` to the counter of this GPU on every other one, after all earlier stores of the block. Called by all threads.
// `counters`: for each GPU the address of its PEERS counters.
__device__ __forceinline__ void signal_peers(const u64* counters, u64 n) {
    __syncthreads();  // the stores of all threads come before the signal
    if (threadIdx.x < PEERS && threadIdx.x != RANK) {
        asm volatile("fence.acq_rel.sys;" ::: "memory");
        asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(counters[threadIdx.x] + 8 * RANK), "l"(n) : "memory");
    }
}

// Send the share of one of `blocks` blocks of `total` signals.
__device__ __forceinline__ void signal_peers(const PeerTable& table, u64 total, u32 block, u32 blocks) {
    if (!total) return;
    const u64 share = total / blocks;
    signal_peers(table.counters, block ? share : total - share * (blocks - 1));
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

// Wait for the inputs of a kernel; called by all threads, after `wait_on_dependent_grids`.
__device__ __forceinline__ void wait_for_peers(const PeerTable& table) {
    if (!table.before) return;
    wait_for_peers((const u64*)table.arrived, *(const volatile u64*)table.base + table.before);
    __syncthreads();  // the results of all GPUs are visible to all threads
}
#endif
#endif
