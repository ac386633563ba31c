// Results that the next kernel reads before their kernel has ended: entries that are EMPTY until they are written.
//
// A dependent kernel starts when every block of the kernel before it has started and called `launch_dependent_grids`, so it may
// wait for results of these blocks. It reads until no entry is EMPTY, at most MAX_POLLS times, then waits for the end of the
// kernel before it. So a value that happens to have the bits of EMPTY only costs time. The entries must be cleared after
// their last reader has ended and before the reading kernel can start. All loads go to the L2 cache. This is the one
// exception to the rule of pdl.cuh that a kernel waits first. It still waits before it ends, and what it overwrites before that
// was read by kernels that had ended when it could start.
#pragma once
#include "pdl.cuh"
#include "types.cuh"

constexpr u32 EMPTY = ~0u;  // also two float16; NaN with bits that no arithmetic instruction makes
constexpr int POLL_PAUSE = 100;  // of the experts' launches; faster than none for one, two and four rows
constexpr int MAX_POLLS = 64;  // about 50 us, far longer than a kernel of a decode step takes to write its first results

// Read by all lanes of a warp: `load` reads a lane's entries and returns true if none is EMPTY. Where many blocks read the same
// lines, a PAUSE in nanoseconds between two reads lets the writers through.
template <int PAUSE = 0, class Load>
__device__ __forceinline__ void poll(Load load) {
#pragma unroll 1
    for (int i = 0; i < MAX_POLLS; ++i) {
        if (__all_sync(~0u, load())) return;
        if constexpr (PAUSE > 0) __nanosleep(PAUSE);
    }
    wait_on_dependent_grids();
    load();
}

__device__ __forceinline__ u32 load_published(const void* from) {
    u32 v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint4 load_published_16(const void* from) {
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ void publish(void* to, u32 v) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(v) : "memory");
}

// True if no float16 of the words is EMPTY.
__device__ __forceinline__ bool all_halves_written(uint4 v) {
    const u32 words[4] = {~v.x, ~v.y, ~v.z, ~v.w};
    u32 empty = 0;
    UNROLL for (int i = 0; i < 4; ++i) empty |= words[i] - 0x00010001u & ~words[i] & 0x80008000u;
    return empty == 0;
}

// Clear `n_bytes` bytes, a multiple of 4, by threads `first`, `first + step` and so on.
__device__ __forceinline__ void clear_published(void* to, int n_bytes, int first, int step) {
    for (int i = 4 * first; i < n_bytes; i += 4 * step) publish((u8*)to + i, EMPTY);
}
