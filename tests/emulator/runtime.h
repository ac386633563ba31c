// Threads, blocks and launches of the emulator. Everything runs in the host thread that waits or launches, under one lock.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "include/thread.h"

typedef unsigned char u8;
typedef unsigned u32;
typedef unsigned long long u64;

constexpr int STATIC_AT = 0x40000;      // first byte of variables that kernels declare; dynamic shared memory begins at 0
constexpr int SHARED_BYTES = 0x50000;   // of a block, both together
constexpr u32 MOST_SHARED = 227 << 10;  // of a block, both together, without the gap between them
constexpr int STACK_BYTES = 192 << 10;  // of a thread; pages are taken when they are touched
constexpr int GARBAGE = 0xcb;           // what memory holds before it is written
constexpr int LAUNCH_FAILED = 719, ILLEGAL_ADDRESS = 700, TIMED_OUT = 702, NO_BINARY = 209;  // CUresult

struct Block;

// A thread of a block. It runs until it waits; then the scheduler resumes another one.
struct Fiber : Thread {
    void* stack_pointer;
    u8* stack;
    Block* of;
    bool done = false;
    const volatile u64* watched = nullptr;  // it waits while the bits `mask` of this word are `value`
    u64 mask = 0, value = 0;
    u64 cluster_arrivals = 0;
    const char* at = "its beginning";

    bool can_run() const { return !done && (!watched || (*watched & mask) != value); }
};

// Lanes of a mask that call a function of the warp.
struct Meeting {
    u32 mask = 0, arrived = 0;
    u64 generation = 0;
    const char* what = nullptr;
    const void* in[32];
    void* out[32];
    Together apply;

    void complete();
};

struct Warp {
    std::vector<std::unique_ptr<Meeting>> meetings;
    u32 done = 0;
};

struct WarpgroupMeeting {
    int arrived = 0;
    u64 generation = 0;
    const void* in[128];
};

struct Barrier {
    int arrived = 0, n = 0;
    u64 generation = 0;
    bool all = true, result = true;

    void complete();
};

struct Cluster;

struct Block {
    Cluster* cluster;
    u8* shared;
    int alive;
    std::vector<Fiber> fibers;
    std::vector<Warp> warps;
    Barrier barriers[16];
    WarpgroupMeeting warpgroups[8];
};

// Blocks that start together and reach each other's shared memory; usually a single one.
struct Cluster {
    std::vector<std::unique_ptr<Block>> blocks;
    int alive = 0, arrived = 0;
    u64 generation = 0;
};

struct Function {
    std::string name;
    void (*compile)(Function*);            // loads it, if that is possible
    void (*call)(void** arguments) = nullptr;  // null until it is loaded
    std::vector<int> sizes;  // bytes of each parameter
    int cluster, device;     // blocks of a cluster; device that it was loaded for
    int* static_bytes;       // shared memory that the module's kernels declare
    int most_shared = 48 << 10;
};

struct Launch {
    Launch(Function* function, const uint3& grid, const uint3& block, u32 shared, void** arguments);
    Launch(const Launch& other);

    Function* function;
    uint3 grid, block;
    u32 shared;
    std::vector<u64> values;  // of the arguments
    std::vector<void*> arguments;
    u64 started = 0;  // blocks
    std::vector<std::unique_ptr<Cluster>> running;

    int threads() const { return block.x * block.y * block.z; }
};

enum Progress { DONE, MOVED, STUCK };

// Run a launch until it ends, or until every block waits for memory that something else must write.
Progress run(Launch& launch);
void print_waiting(Launch& launch);

extern int failure;     // CUresult of the first fault, after which nothing runs; 0 for none
extern u64 progress;    // counts every event that another thread may wait for
extern Launch* current;

void wait(const char* at, const volatile u64* word, u64 mask, u64 value);
u8* map(size_t n_bytes);
