// Programmatic dependent launch (PDL): a kernel may start while the kernel before it in the stream still runs.
//
// A kernel launched with `jit.kernel(..., dependent=True)` must call `wait_on_dependent_grids` in every thread before that
// thread reads or writes memory that an earlier kernel writes or reads. Every block must call it at least once, even if the
// block has nothing to do: the end of this kernel must mean the end of all earlier ones. Weights, which no kernel writes,
// may be loaded before the call. Before Hopper both functions do nothing, and kernels run one after the other.
#pragma once

// Allow the next kernel to start once all blocks have called this or ended, and resources are free.
__device__ __forceinline__ void launch_dependent_grids() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Wait until all earlier kernels have ended and their writes are visible.
__device__ __forceinline__ void wait_on_dependent_grids() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
