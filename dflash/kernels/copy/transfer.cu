// Copy words between places in device memory and pinned host memory.
//
// Grid (vectors of four words / 256, rounded up), block 256, no shared memory. Both addresses are multiples of 16. The launch
// after this one may read what it writes before it waits, so this kernel does not let it start early. Bytes: 8 a word.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/system_loads.cuh"

extern "C" __global__ void __launch_bounds__(256)
transfer(unsigned long long to, unsigned long long source, int n_words) {
    u32* const target = (u32*)to;
    const u32* const from = (const u32*)source;
    const int first = 4 * (blockIdx.x * 256 + threadIdx.x);
    wait_on_dependent_grids();
    if (first + 4 <= n_words) {
        *(uint4*)(target + first) = load_system_16(from + first);
    } else {
        for (int i = first; i < n_words; ++i) target[i] = load_system(from + i);
    }
    __threadfence();  // all is written before the next launch starts
}
