// Programmatic dependent launch: a kernel may start while the one before it in the stream still runs.
//
// A kernel that `jit.kernel(..., dependent=True)` launches must call `wait_for_inputs` in every thread before that thread
// reads or writes anything that an earlier kernel touches, and at least once even where a block has nothing to do: what comes
// after it relies on its end meaning the end of all before. Weights, which no kernel writes, may be fetched ahead of the wait.
// Nothing happens on GPUs before Hopper, where kernels start one after the other.
#pragma once

// The next kernel may start as soon as all blocks have said so or are done, and there is room.
__device__ __forceinline__ void dependents_may_launch() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Until all earlier kernels are done and what they wrote can be seen.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
