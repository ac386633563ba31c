// Unpack the quantized pages of the sequences of a pass to float16 pages at the same places, for kernels that read float16.
//
// A thread unpacks 16 values at a time; a block takes every gridDim.x-th group of POSITIONS positions. Grid (any, 2): keys
// and values. Block 256, no shared memory. Macros: those of quantized.cuh; KV_HEADS.
// Bytes: Keys::HEAD + Values::HEAD + 4 * HEAD_DIM for each position and KV head.
#include "../gpu/include/pdl.cuh"
#include "quantized.cuh"

#ifndef KV_HEADS
#error "KV_HEADS must be defined"
#endif

constexpr int PAGE = 256, POSITIONS = 16, LINES = KV_HEADS * (HEAD_DIM / 16);

// 16 values of a word or four: of q8_0 all of `words`, of q4_0 one half of each byte.
template <class Format>
__device__ __forceinline__ void unpack_line(const u8* head, int line, uint4* out) {
    const u32 scale = both(*(const u16*)(head + Format::VALUES + line / 2 * 2));
    const uint4 bytes = *(const uint4*)(head + (Format::BYTES ? 16 * line : line / 2 * 16));
    const auto four = [&](u32 word) {
        u32 first, second;
        Format::unpack(word, line % 2, scale, first, second);
        return Format::in_order(first, second);  // its own inverse
    };
    const uint2 a = four(bytes.x), b = four(bytes.y), c = four(bytes.z), d = four(bytes.w);
    out[0] = make_uint4(a.x, a.y, b.x, b.y), out[1] = make_uint4(c.x, c.y, d.x, d.y);
}

template <class Format>
__device__ __forceinline__ void unpack_sequences(const u8* from, u16* to, const int* counts, const int* first,
                                                 const int* length, const int* pages, int max_pages) {
    for (int s = 0; s < counts[1]; ++s) {
        const int written = length[s] + first[s + 1] - first[s];
        for (int start = blockIdx.x * POSITIONS; start < written; start += gridDim.x * POSITIONS) {
            const size_t row = (size_t)pages[(size_t)s * max_pages + start / PAGE] * PAGE + start % PAGE;
            for (int n = threadIdx.x; n < min(POSITIONS, written - start) * LINES; n += 256) {
                const size_t head = (row + n / LINES) * KV_HEADS + n % LINES / (HEAD_DIM / 16);
                const int line = n % (HEAD_DIM / 16);
                unpack_line<Format>(from + head * Format::HEAD, line, (uint4*)(to + head * HEAD_DIM + 16 * line));
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
unpack(const unsigned char* k, const unsigned char* v, const int* counts, const int* first, const int* length,
       const int* pages, int max_pages, unsigned short* unpacked_k, unsigned short* unpacked_v) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    if (blockIdx.y) unpack_sequences<Values>(v, unpacked_v, counts, first, length, pages, max_pages);
    else unpack_sequences<Keys>(k, unpacked_k, counts, first, length, pages, max_pages);
}
