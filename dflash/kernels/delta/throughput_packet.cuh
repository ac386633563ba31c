// Packets of step_throughput.cu: a task's row and accepted rows in shared memory, made by a producer warp for the consumers.
//
// Macros: those of throughput_row.cuh and stored_rows.cuh; NORM_PARTS, parts of a head whose sums of squares are added in order.
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/mbarrier.cuh"
#include "gates.cuh"
#include "throughput_row.cuh"
#include "stored_rows.cuh"

constexpr int PRODUCER_WARPS = 4, PACKETS = 2 * PRODUCER_WARPS;
constexpr int ACCEPTED_HERE = 8;  // accepted rows in a packet; consumers read further ones from memory

struct Packet {
    float row[2 * KEY_DIM + VALUE_DIM];  // q, k, v; then the update in place of v
    float reads[VALUE_DIM];
    float keys[ACCEPTED_HERE][KEY_DIM], updates[ACCEPTED_HERE][VALUE_DIM], factors[ACCEPTED_HERE];
    float decay, beta, product;
    int n_accepted, kept, padding[3];  // `kept`: the state is not written
};
static_assert(sizeof(Packet) % 16 == 0, "rows are copied 16 bytes at a time");

// A head of a sequence.
struct Task {
    int sequence, head;

    __device__ __forceinline__ explicit Task(int number) : sequence(number / VALUE_HEADS), head(number % VALUE_HEADS) {}
};

// A sequence as the batch describes it. `buffer`: see params.cuh.
struct RowInfo {
    int start, slot, n_accepted, buffer;
    AcceptedRows ids;

    __device__ __forceinline__ void load(const int* first, const int* slots, const int* counts, const int* buffers,
                                         const int* rows, int s) {
        start = first[s], slot = slots[s], n_accepted = counts[s], buffer = buffers[s];
        ids.load(rows + s * PENDING);
    }
    // First pending row of the slot in the previous pass, and the row of this pass; both count over all slots.
    __device__ __forceinline__ size_t previous(int slots) const { return (size_t)((buffer & 1) * slots + slot) * STORED_ROWS; }
    __device__ __forceinline__ size_t current(int slots) const {
        return kept() ? previous(slots) + (buffer >> 1) : (size_t)((1 - buffer) * slots + slot) * STORED_ROWS;
    }
    __device__ __forceinline__ bool kept() const { return buffer >> 1; }
};

struct ThroughputArrays {
    const float *mixed, *gate, *alpha, *beta, *taps, *ssm_a, *ssm_dt, *ssm_norm;
    float eps;
    float *tail, *inputs, *k, *u, *decay;
    int slots;
    int* readers;
    unsigned short* out;
};

// By a producer warp: fill a packet, store what later passes need of the row, and move the conv state.
__device__ __forceinline__ void produce(const ThroughputArrays& arrays, const Task& task, const RowInfo& info, Packet& packet,
                                        int lane) {
    const int group = key_head(task.head), n_here = min(info.n_accepted, ACCEPTED_HERE);
    const size_t previous = info.previous(arrays.slots), current = info.current(arrays.slots);
    const HeadChannels channels(task.head, lane);
#pragma unroll 1
    for (int r = 0; r < n_here; ++r) {
        const size_t row = previous + info.ids.at(r);
        const float* const update = arrays.u + (row * VALUE_HEADS + task.head) * VALUE_DIM;
        for (int x = 4 * lane; x < KEY_DIM; x += 128)
            cp_async_16(smem_address(packet.keys[r] + x), arrays.k + (row * KEY_HEADS + group) * KEY_DIM + x);
        for (int x = 4 * lane; x < VALUE_DIM; x += 128) cp_async_16(smem_address(packet.updates[r] + x), update + x);
        if (lane == 0) cp_async_4(smem_address(packet.factors + r), arrays.decay + row * VALUE_HEADS + task.head);
    }
    cp_async_commit_group();
    float* const tail = arrays.tail + (size_t)info.slot * (TAPS - 1) * CHANNELS;
    RowInputs inputs;
    inputs.load(arrays.mixed + (size_t)info.start * CHANNELS, arrays.inputs + previous * CHANNELS, tail, info.ids,
                info.n_accepted, channels);
    const size_t gate_at = (size_t)info.start * VALUE_HEADS + task.head;
    const float decay = expf(log_decay(arrays.alpha[gate_at], arrays.ssm_a[task.head], arrays.ssm_dt[task.head]));
    const float beta = beta_of(arrays.beta[gate_at]);
    ConvolvedRow row;
    row.make(inputs, arrays.taps, channels);
    UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) packet.row[32 * i + lane] = row.of[i];
    const bool writes_keys = is_first_of_group(task.head);
    UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
        if (i < 2 * KEYS_PER_LANE && !writes_keys) continue;
        arrays.inputs[current * CHANNELS + channels.at(i)] = inputs.of[TAPS - 1][i];
        if (i >= KEYS_PER_LANE && i < 2 * KEYS_PER_LANE)
            arrays.k[(current * KEY_HEADS + group) * KEY_DIM + 32 * (i - KEYS_PER_LANE) + lane] = row.of[i];
    }
    if (lane == 0) {
        arrays.decay[current * VALUE_HEADS + task.head] = decay;
        packet.decay = decay, packet.beta = beta, packet.product = row.product;
        packet.n_accepted = info.n_accepted, packet.kept = info.kept();
    }
    if (info.n_accepted && !info.kept()) {
        // Several heads read the channels of q and k: the last one updates these. All lanes have used what they read.
        __syncwarp();
        int arrived = 0;
        int* const readers = arrays.readers + task.sequence * KEY_HEADS + group;
        if (lane == 0) arrived = atomicAdd(readers, 1);
        const bool moves_all = __shfl_sync(~0u, arrived, 0) == VALUE_HEADS / KEY_HEADS - 1;
        if (moves_all && lane == 0) *readers = 0;
        UNROLL for (int i = 0; i < CHANNELS_PER_LANE; ++i) {
            if (i < 2 * KEYS_PER_LANE && !moves_all) continue;
            UNROLL for (int t = 0; t < TAPS - 1; ++t) tail[t * CHANNELS + channels.at(i)] = inputs.of[t][i];
        }
    }
    cp_async_wait_group<0>();
    __syncwarp();  // the packet is complete
}

// By a producer warp: out = half(o / rms(o) * weight * silu(gate)), and the update for the next pass. `finished` waits for the
// consumers of the packet.
template <class Wait>
__device__ __forceinline__ void norm_read_out(const ThroughputArrays& arrays, const Task& task, const RowInfo& info,
                                            const Packet& packet, int lane, const Wait& finished) {
    constexpr int PART = VALUE_DIM / NORM_PARTS;
    const size_t row = ((size_t)info.start * VALUE_HEADS + task.head) * VALUE_DIM;
    const size_t update = (info.current(arrays.slots) * VALUE_HEADS + task.head) * VALUE_DIM;
    float2 z[NORM_PARTS];
    UNROLL for (int p = 0; p < NORM_PARTS; ++p) {
        z[p] = 2 * lane < PART ? *(const float2*)(arrays.gate + row + p * PART + 2 * lane) : make_float2(0.0f, 0.0f);
    }
    finished();
    float sum = 0.0f;
    UNROLL for (int p = 0; p < NORM_PARTS; ++p) {
        float of_part = 0.0f;
        UNROLL for (int v = 0; v < PART; v += 32) {
            const float one = PART % 32 == 0 || v + lane < PART ? packet.reads[p * PART + v + lane] : 0.0f;
            of_part = __fmaf_rn(one, one, of_part);
        }
        of_part = warp_sum(of_part);
        sum = p == 0 ? of_part : __fadd_rn(sum, of_part);
    }
    const float factor = rsqrtf(__fmaf_rn(sum, 1.0f / VALUE_DIM, arrays.eps));
    if (2 * lane >= PART) return;
    UNROLL for (int p = 0; p < NORM_PARTS; ++p) {
        const int at = p * PART + 2 * lane;
        const float2 gain = *(const float2*)(arrays.ssm_norm + at), read = *(const float2*)(packet.reads + at);
        *(float2*)(arrays.u + update + at) = *(const float2*)(packet.row + 2 * KEY_DIM + at);
        const u32 low = half_saturated(read.x * factor * gain.x * silu_fast(z[p].x));
        const u32 both = low | (u32)half_saturated(read.y * factor * gain.y * silu_fast(z[p].y)) << 16;
        *(u32*)(arrays.out + row + at) = both;
    }
}
