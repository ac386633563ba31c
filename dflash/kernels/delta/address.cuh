// Shared memory as the instructions want it named.
#pragma once

__device__ __forceinline__ u32 address(const void* shared) { return (u32)__cvta_generic_to_shared(shared); }
