// Copy words between places in device memory and pinned host memory; some of them may come from a second place.
//
// Words [first, first + n_taken) of the copy come from `taken`, device memory, the others from `source`. If `source` is host
// memory (`from_host`), it is read before the launches before this one have ended.
//
// Grid (vectors of four words / 256, rounded up), block 256, no shared memory. `to` and `source` are multiples of 16. The launch
// after this one may read what it writes before it waits, so this kernel does not let it start early. Bytes: 8 a word.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/system_loads.cuh"

// Load up to four words.
__device__ __forceinline__ void load_words(u32 (&words)[4], const u32* from, int n) {
    if (n == 4) {
        const uint4 v = load_system_16(from);
        words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) words[i] = i < n ? load_system(from + i) : 0;
    }
}

extern "C" __global__ void __launch_bounds__(256)
transfer(unsigned long long to, unsigned long long source, int n_words, int from_host, unsigned long long taken, int first,
         int n_taken) {
    const int at = 4 * (blockIdx.x * 256 + threadIdx.x), n = min(4, n_words - at);
    u32 words[4];
    if (from_host) load_words(words, (const u32*)source + at, n);
    wait_on_dependent_grids();
    if (!from_host) load_words(words, (const u32*)source + at, n);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (i < n && (unsigned)(at + i - first) < (unsigned)n_taken) words[i] = load_system((const u32*)taken + at + i - first);
    }
    u32* const target = (u32*)to + at;
    if (n == 4) {
        *(uint4*)target = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            if (i < n) target[i] = words[i];
        }
    }
    __threadfence();  // all is written before the next launch starts
}
