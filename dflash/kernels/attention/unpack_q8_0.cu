// Unpack the q8_0 pages of the sequences of a pass to float16 pages at the same places, for kernels that read float16.
//
// A thread unpacks 16 values at a time; a block takes every gridDim.x-th group of POSITIONS positions. Grid (any, 2): keys
// and values. Block 256, no shared memory. Macros: those of q8_0.cuh; KV_HEADS.
// Bytes: 3 * HEAD_DIM for each position and KV head of keys and of values.
#include "../gpu/include/pdl.cuh"
#include "q8_0.cuh"

#ifndef KV_HEADS
#error "KV_HEADS must be defined"
#endif

constexpr int PAGE = 256, POSITIONS = 16, LINES = KV_HEADS * (HEAD_DIM / 16);

extern "C" __global__ void __launch_bounds__(256)
unpack_q8_0(const unsigned char* k, const unsigned char* v, const int* counts, const int* first, const int* length,
            const int* pages, int max_pages, unsigned short* unpacked_k, unsigned short* unpacked_v) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const u8* from = blockIdx.y ? v : k;
    u16* to = blockIdx.y ? unpacked_v : unpacked_k;
    for (int s = 0; s < counts[1]; ++s) {
        const int written = length[s] + first[s + 1] - first[s];
        for (int start = blockIdx.x * POSITIONS; start < written; start += gridDim.x * POSITIONS) {
            const size_t row = (size_t)pages[(size_t)s * max_pages + start / PAGE] * PAGE + start % PAGE;
            for (int n = threadIdx.x; n < min(POSITIONS, written - start) * LINES; n += 256) {
                const size_t head = (row + n / LINES) * KV_HEADS + n % LINES / (HEAD_DIM / 16);
                const int line = n % (HEAD_DIM / 16);
                const uint4 bytes = *(const uint4*)(from + head * HEAD_BYTES + 16 * line);
                const u32 scale = both(*(const u16*)(from + head * HEAD_BYTES + HEAD_DIM + line / 2 * 2));
                uint4* out = (uint4*)(to + head * HEAD_DIM + 16 * line);
                out[0] = make_uint4(low_values(bytes.x, scale), high_values(bytes.x, scale), low_values(bytes.y, scale),
                                    high_values(bytes.y, scale));
                out[1] = make_uint4(low_values(bytes.z, scale), high_values(bytes.z, scale), low_values(bytes.w, scale),
                                    high_values(bytes.w, scale));
            }
        }
    }
}
