// What compiled kernels know of the emulator: the running thread, and functions in which threads wait for each other.
#pragma once
#include <cstddef>

struct uint3 {
    unsigned x, y, z;
};

struct Thread {
    uint3 index, block, block_size, grid_size;
    unsigned char* shared;  // shared memory of the block: dynamic from byte 0, declared by the kernel from STATIC_AT
    int linear, lane, warp;
};

// Offset of a variable in shared memory, the same in all blocks; chosen when a thread first passes its declaration.
struct SharedVariable {
    int offset = -1;
};

// Computes the results of all lanes from their inputs once every lane of the mask has arrived.
typedef void (*Together)(const void* const* in, void* const* out, unsigned mask);

extern "C" {
extern Thread* emu_thread;  // the one that runs
void* emu_shared(SharedVariable& variable, size_t n_bytes, int* used);
unsigned char* emu_at(unsigned address);  // of a shared address, in this block or one of its cluster

void emu_warp(unsigned mask, const char* what, const void* in, void* out, Together apply);
void emu_warpgroup(const void* in, Together apply);
void emu_barrier_arrive(int id, int n);
bool emu_barrier(int id, int n, bool predicate);  // n 0: all threads of the block; true if all predicates are
void emu_cluster_arrive();
void emu_cluster_wait();
void emu_poll();  // let others run: called between two reads of memory that another thread may change

void emu_mbarrier_init(unsigned barrier, int arrivals);
void emu_mbarrier_arrive(unsigned barrier, int arrivals);
void emu_mbarrier_arrive_expect(unsigned barrier, int n_bytes);
void emu_mbarrier_complete(unsigned barrier, int n_bytes);
void emu_mbarrier_wait(unsigned barrier, unsigned parity);

[[noreturn]] void emu_fail(const char* why);  // ends the launch with an error
}
