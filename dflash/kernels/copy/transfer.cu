// Copy words between places in device memory and pinned host memory.
//
// Grid (vectors of four words / 256, rounded up), block 256, no shared memory. Both addresses are multiples of 16. The launch
// after this one may read what it writes before it waits, so this kernel does not let it start early. Bytes: 8 a word.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/types.cuh"

// The host writes its memory again between launches, so loads are not served from the L1 cache.
__device__ __forceinline__ u32 load_word(const u32* from) {
    u32 v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ uint4 load_vector(const u32* from) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

extern "C" __global__ void __launch_bounds__(256)
transfer(unsigned long long to, unsigned long long source, int n_words) {
    u32* const target = (u32*)to;
    const u32* const from = (const u32*)source;
    const int first = 4 * (blockIdx.x * 256 + threadIdx.x);
    wait_on_dependent_grids();
    if (first + 4 <= n_words) {
        *(uint4*)(target + first) = load_vector(from + first);
    } else {
        for (int i = first; i < n_words; ++i) target[i] = load_word(from + i);
    }
    __threadfence();  // all is written before the next launch starts
}
