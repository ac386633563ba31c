// Prefill, first kernel: convolution and SiLU of all channels, then q with unit length times KEY_DIM^-0.5 and k with unit
// length; all stored as float16.
//
// A warp handles the channels of one head of q, k or v for ROWS_PER_WARP consecutive rows. Grid (rows / ROWS_PER_WARP, heads
// / 8, both rounded up), block 256, no shared memory.
// Macros: those of stored_rows.cuh; TAPS of the conv. Bytes: 6 * C a row.
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "conv_context.cuh"
#include "stored_rows.cuh"

constexpr int ROWS_PER_WARP = 16, IN_FLIGHT = 4;  // rows of a warp; rows that are loaded at a time

// Channels of one head that a lane handles: vectors of four where SIZE allows it.
template <int SIZE>
struct Channels {
    static constexpr bool VECTORS = SIZE % 128 == 0;
    static constexpr int PER_LANE = (SIZE + 31) / 32;
    float of[PER_LANE];

    static __device__ __forceinline__ int index(int i, int lane) {
        return VECTORS ? i / 4 * 128 + 4 * lane + i % 4 : i * 32 + lane;
    }
    static __device__ __forceinline__ bool has(int i, int lane) { return SIZE % 32 == 0 || i * 32 + lane < SIZE; }

    __device__ __forceinline__ void load(const float* from, int lane) {
        if constexpr (VECTORS) {
            UNROLL for (int i = 0; i < PER_LANE; i += 4) {
                const float4 x = *(const float4*)(from + i * 32 + 4 * lane);
                of[i] = x.x, of[i + 1] = x.y, of[i + 2] = x.z, of[i + 3] = x.w;
            }
        } else {
            UNROLL for (int i = 0; i < PER_LANE; ++i) of[i] = has(i, lane) ? from[i * 32 + lane] : 0.0f;
        }
    }
    __device__ __forceinline__ void store(u16* to, int lane, float factor) const {
        if constexpr (VECTORS) {
            UNROLL for (int i = 0; i < PER_LANE; i += 4) {
                *(uint2*)(to + i * 32 + 4 * lane) =
                    half4_saturated(of[i] * factor, of[i + 1] * factor, of[i + 2] * factor, of[i + 3] * factor);
            }
        } else {
            UNROLL for (int i = 0; i < PER_LANE; ++i) {
                if (has(i, lane)) to[i * 32 + lane] = half_saturated(of[i] * factor);
            }
        }
    }
};

// Rows `row` .. `stop` - 1 of one sequence, for the head whose channels start at `channel`. `unit`: length to which the head
// is normalised, or 0 for none.
template <int SIZE>
__device__ __forceinline__ void walk(const float* mixed, const float* taps, u16* prepared, const ConvContext& context,
                                     int first, int row, int stop, int channel, float unit, int lane) {
    using Mine = Channels<SIZE>;
    Mine weight[TAPS], window[TAPS - 1 + IN_FLIGHT];
    UNROLL for (int t = 0; t < TAPS; ++t) weight[t].load(taps + t * CHANNELS + channel, lane);
    UNROLL for (int t = 1; t < TAPS; ++t) {
        if (row - t >= first) {
            window[TAPS - 1 - t].load(mixed + (size_t)(row - t) * CHANNELS + channel, lane);
        } else {
            UNROLL for (int i = 0; i < Mine::PER_LANE; ++i) {
                const int steps = t - (row - first);
                window[TAPS - 1 - t].of[i] = Mine::has(i, lane) ? context.at(steps, channel + Mine::index(i, lane)) : 0.0f;
            }
        }
    }
    for (; row < stop; row += IN_FLIGHT) {
        UNROLL for (int r = 0; r < IN_FLIGHT; ++r) {
            if (row + r < stop) window[TAPS - 1 + r].load(mixed + (size_t)(row + r) * CHANNELS + channel, lane);
        }
        UNROLL for (int r = 0; r < IN_FLIGHT; ++r) {
            if (row + r >= stop) continue;
            Mine out;
            float square = 0.0f;
            UNROLL for (int i = 0; i < Mine::PER_LANE; ++i) {
                float total = __fmul_rn(weight[0].of[i], window[r].of[i]);
                UNROLL for (int t = 1; t < TAPS; ++t) total = __fmaf_rn(weight[t].of[i], window[r + t].of[i], total);
                out.of[i] = silu_fast(total);
                square = __fmaf_rn(out.of[i], out.of[i], square);
            }
            const float factor = unit == 0.0f ? 1.0f : __fdiv_rn(unit, sqrtf(warp_sum(square) + 1e-6f));
            out.store(prepared + (size_t)(row + r) * CHANNELS + channel, lane, factor);
        }
        UNROLL for (int t = 0; t < TAPS - 1; ++t) window[t] = window[t + IN_FLIGHT];
    }
}

extern "C" __global__ void __launch_bounds__(256)
prefill_conv(const float* mixed, const float* taps, const int* counts, const int* first, const int* sequence,
             const int* slot, const int* accepted, const int* n_accepted, const int* buffer, const float* tail,
             const float* inputs, int slots, unsigned short* prepared) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int head = blockIdx.y * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
    const int end = min(counts[0], (int)(blockIdx.x + 1) * ROWS_PER_WARP);
    if (head >= 2 * KEY_HEADS + VALUE_HEADS) return;
    for (int row = blockIdx.x * ROWS_PER_WARP; row < end;) {
        const int s = sequence[row], here = slot[s], stop = min(end, first[s + 1]);
        const size_t old = (size_t)(buffer[s] * slots + here) * STORED_ROWS;
        const float* const slot_tail = tail + (size_t)here * (TAPS - 1) * CHANNELS;
        const ConvContext context{slot_tail, inputs + old * CHANNELS, accepted + s * PENDING, n_accepted[s]};
        if (head < 2 * KEY_HEADS) {
            const float unit = head < KEY_HEADS ? rsqrtf((float)KEY_DIM) : 1.0f;
            walk<KEY_DIM>(mixed, taps, prepared, context, first[s], row, stop, head * KEY_DIM, unit, lane);
        } else {
            const int channel = 2 * KEY_HEADS * KEY_DIM + (head - 2 * KEY_HEADS) * VALUE_DIM;
            walk<VALUE_DIM>(mixed, taps, prepared, context, first[s], row, stop, channel, 0.0f, lane);
        }
        row = stop;
    }
}
