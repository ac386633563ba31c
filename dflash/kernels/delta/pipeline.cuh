// Pipeline between the producer and the consumer warps of step.cu: stages of STAGE_ROWS rows, in the order of visits.
// Barriers of a stage: loaded (inputs are copied), full (rows are convolved) and empty (the consumers have read the rows).
//
// Macros: those of smem.cuh.
#pragma once
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/mbarrier.cuh"
#include "smem.cuh"

constexpr int STAGE_ROWS = 4, MAX_STAGES = MAX_ROWS / STAGE_ROWS;

struct Pipeline {
    u64 loaded[MAX_STAGES], full[MAX_STAGES], empty[MAX_STAGES];  // every thread arrives separately

    // Called by all threads. The warps share the barriers: initialising one barrier per warp takes no longer than one
    // barrier alone.
    __device__ __forceinline__ void init() {
        if (threadIdx.x % 32 == 0) {
#pragma unroll 1
            for (int i = threadIdx.x / 32; i < MAX_STAGES; i += THREADS / 32) {
                mbarrier_init(smem_address(loaded + i), 32 * STAGE_ROWS);
                mbarrier_init(smem_address(full + i), 32 * STAGE_ROWS);
                mbarrier_init(smem_address(empty + i), CONSUMERS);
            }
        }
        __syncwarp();  // the barriers are initialised before the warp uses them
    }
};
