// Pipeline of a producer and its consumers on Hopper: N stages of BYTES bytes in shared memory, each with a barrier that is
// complete when the stage is full and one that is complete when all consumers have released it.
#pragma once
#include "types.cuh"

// Position of a thread in the pipeline. A consumer waits for phase `phase` of a full barrier. A producer waits for the phase
// before that one of an empty barrier, so its first waits return at once.
template <int N, int BYTES>
struct PipelineState {
    u32 stages, full, empty;  // shared addresses of the first stage and of its barriers, 8 bytes each
    int stage, phase;

    __device__ __forceinline__ u32 tile() const { return stages + stage * BYTES; }
    __device__ __forceinline__ u32 full_barrier() const { return full + 8 * stage; }
    __device__ __forceinline__ u32 empty_barrier() const { return empty + 8 * stage; }
    __device__ __forceinline__ void next() {
        if (++stage == N) stage = 0, phase ^= 1;
    }
};
