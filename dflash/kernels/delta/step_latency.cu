// Linear attention of one pending row of each sequence (plain decode): the operations of step.cu, with the same bits.
//
// A block handles BLOCK_V value rows of one head of one sequence. Roles of its warps:
//   state      hold the state in registers, apply the accepted rows of the previous pass, and read the state at the row.
//   all but the last    convolve a channel each.
//   the last   computes the gates, then normalises the read-out.
// Before it waits for earlier kernels, a block requests the batch, the state, the accepted rows and the left context of the
// conv; after it, the row. No other kernel of a pass accesses what it reads before.
// The SPLIT blocks of a head form a cluster and exchange the sums of squares of the norm.
//
// Grid (SPLIT, VALUE_HEADS, sequences), block THREADS, shared memory static.
// Macros: those of stored_rows.cuh; TAPS of the conv; SPLIT, blocks of a head; NORM_PARTS, blocks of a head in step.cu,
// whose norm adds one sum of squares for each; SEPARATE_NORM, 1 if there the norm is left to gated_norm.cu, then NORM_PARTS
// is 1.
// Bytes: 4 * VALUE_HEADS * VALUE_DIM * KEY_DIM a sequence, twice if rows were accepted and are not kept.
#if !defined(SPLIT) || !defined(NORM_PARTS) || !defined(SEPARATE_NORM) || !defined(TAPS)
#error "SPLIT, NORM_PARTS, SEPARATE_NORM and TAPS must be defined"
#endif
#define ROWS_PER_THREAD 2
#define BLOCK_V (VALUE_DIM / SPLIT)
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "apply_accepted.cuh"
#include "cluster_sum.cuh"
#include "gates.cuh"
#include "stored_rows.cuh"
#include "unit_keys.cuh"

static_assert(VALUE_DIM % SPLIT == 0 && BLOCK_V % 16 == 0 && KEY_DIM <= 128, "whole warps hold the state");
static_assert(NORM_PARTS % SPLIT == 0 && VALUE_DIM % NORM_PARTS == 0 && (SPLIT == 1 || SPLIT == NORM_PARTS),
              "a block adds whole parts of the norm's sum");
static_assert(!SEPARATE_NORM || NORM_PARTS == 1, "gated_norm.cu adds the squares of a head in one sum");
#if __CUDA_ARCH__ < 900
static_assert(SPLIT == 1, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

constexpr int BLOCK_CHANNELS = 2 * KEY_DIM + BLOCK_V;  // channels of a block: those of its q, its k and its values
constexpr int CONV_THREADS = STATE_THREADS + (BLOCK_CHANNELS > STATE_THREADS ? (BLOCK_V + 31) / 32 * 32 : 0);
constexpr int THREADS = CONV_THREADS + 32;
constexpr int CHANNELS_PER_THREAD = (BLOCK_CHANNELS + CONV_THREADS - 1) / CONV_THREADS;
using NormSum = ClusterSum<1>;
enum { APPLIED = 1, CONVOLVED, GATES, TAIL };  // named barriers

// A sequence as the batch describes it; see SequenceInfo in params.cuh.
struct Sequence {
    int slot, n_accepted, buffer;
    AcceptedRows accepted;

    __device__ __forceinline__ bool kept() const { return buffer >> 1; }
    __device__ __forceinline__ size_t previous(int slots) const {
        return (size_t)((buffer & 1) * slots + slot) * STORED_ROWS;
    }
    __device__ __forceinline__ size_t current(int slots) const {
        return kept() ? previous(slots) + (buffer >> 1) : (size_t)((1 - buffer) * slots + slot) * STORED_ROWS;
    }
};

// Channels of the conv of a thread: `at` in the block, `of` in a row of the layer.
struct Channel {
    int at, of;
    bool exists, is_key;

    __device__ __forceinline__ Channel(int i, int group, int value)
        : at(threadIdx.x + i * CONV_THREADS), exists(at < BLOCK_CHANNELS), is_key(at < 2 * KEY_DIM) {
        of = is_key ? (at / KEY_DIM * KEY_HEADS + group) * KEY_DIM + at % KEY_DIM : 2 * (KEY_HEADS - 1) * KEY_DIM + value + at;
    }
};

// The unit keys of a row in shared memory: q and k after SiLU. Each warp computes them for itself.
__device__ __forceinline__ UnitKeys unit_keys(const float* row, int lane) {
    float q[KEYS_PER_LANE], k[KEYS_PER_LANE];
    UNROLL for (int i = 0; i < KEYS_PER_LANE; ++i) {
        const int c = 32 * i + lane;
        const bool exists = KEY_DIM % 32 == 0 || c < KEY_DIM;
        q[i] = exists ? row[c] : 0.0f, k[i] = exists ? row[KEY_DIM + c] : 0.0f;
    }
    return {q, k};
}

__device__ __forceinline__ void load_scaled(const float* from, float factor, int lane, float (&to)[COLUMNS]) {
    load_columns(from, lane, to);
    UNROLL for (int c = 0; c < COLUMNS; ++c) to[c] = __fmul_rn(to[c], factor);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) __cluster_dims__(SPLIT, 1, 1)
step_latency(const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
         const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* slot, const int* accepted,
         const int* n_accepted, const int* buffer, float* tail, float* inputs, float* state, float* k, float* u, float* decay,
         int slots, int* readers, unsigned short* out) {
    __shared__ float4 accepted_rows[APPLY_ROWS * (KEY_DIM + BLOCK_V) / 4];
    __shared__ float factors[APPLY_ROWS], gates[2], reads[BLOCK_V];
    __shared__ float4 row_lines[BLOCK_CHANNELS / 4];  // q, k and v of the row after SiLU
    __shared__ u64 read_out;  // barrier: the state warps have stored `reads`
    __shared__ bool moves_all;
    __shared__ NormSum cluster_sum;
    float* const row = (float*)row_lines;
    const int part = blockIdx.x, head = blockIdx.y, group = key_head(head), value = head * VALUE_DIM + part * BLOCK_V;
    const bool writes_keys = is_first_of_group(head) && part == 0;
    const int lane = threadIdx.x % 32, warp = __shfl_sync(~0u, threadIdx.x / 32, 0), s = blockIdx.z;  // sequence and row

    const int n_sequences = counts[1];
    Sequence seq;
    seq.slot = slot[s], seq.n_accepted = n_accepted[s], seq.buffer = buffer[s], seq.accepted.load(accepted + s * PENDING);
    if (SPLIT > 1) cluster_sum.init();
    if (s >= n_sequences) {
        wait_on_dependent_grids();
        if (SPLIT > 1) cluster_sum.wait_init();
        return;
    }
    const size_t previous = seq.previous(slots), current = seq.current(slots);

    if (warp == THREADS / 32 - 1) {  // gates, then the norm
        const float rate = ssm_a[head], shift = ssm_dt[head];
        constexpr int PAIRS = (BLOCK_V / 2 + 31) / 32;
        float2 gain[PAIRS], z[PAIRS];
        const auto exists = [&](int i) { return BLOCK_V % 64 == 0 || 64 * i + 2 * lane < BLOCK_V; };
        const auto pair_of = [&](const float* from, int i) {
            return exists(i) ? *(const float2*)(from + 64 * i + 2 * lane) : make_float2(0.0f, 0.0f);
        };
        UNROLL for (int i = 0; i < PAIRS; ++i) gain[i] = pair_of(ssm_norm + part * BLOCK_V, i);
        wait_on_dependent_grids();
        launch_dependent_grids();
        const float alpha_row = alpha[s * VALUE_HEADS + head], beta_row = beta[s * VALUE_HEADS + head];
        const size_t at = (size_t)s * VALUE_HEADS * VALUE_DIM + value;  // of the block's first value
        UNROLL for (int i = 0; i < PAIRS; ++i) z[i] = pair_of(gate + at, i);
        const float factor_of_state = expf(log_decay(alpha_row, rate, shift)), strength = beta_of(beta_row);
        if (lane == 0) {
            mbarrier_init(smem_address(&read_out), STATE_THREADS / 32 * WARP_ARRIVALS);
            gates[0] = factor_of_state, gates[1] = strength;
            if (part == 0) decay[current * VALUE_HEADS + head] = factor_of_state;
        }
        named_barrier_sync<GATES, STATE_THREADS + 32>();
        if (SPLIT > 1) cluster_sum.wait_init();
        mbarrier_wait_warp(&read_out, 0);
        constexpr int OF_PART = VALUE_DIM / NORM_PARTS;
        float sum = 0.0f;
        UNROLL for (int p = 0; p < NORM_PARTS / SPLIT; ++p) {
            float squares = 0.0f;
            UNROLL for (int v = 0; v < OF_PART; v += 32) {
                const float one = OF_PART % 32 == 0 || v + lane < OF_PART ? reads[p * OF_PART + v + lane] : 0.0f;
                squares = __fmaf_rn(one, one, squares);
            }
            squares = warp_sum(squares);
            sum = p ? __fadd_rn(sum, squares) : squares;
        }
        if (SPLIT > 1) sum = cluster_sum.sum(0, 0, part, sum);
        const float mean_square = __fmaf_rn(sum, 1.0f / VALUE_DIM, eps);
        const float factor = SEPARATE_NORM ? __fdiv_rn(1.0f, sqrtf(mean_square)) : rsqrtf(mean_square);
        UNROLL for (int i = 0; i < PAIRS; ++i) {
            const float2 read = pair_of(reads, i);
            const u32 low = half_saturated(read.x * factor * gain[i].x * silu_fast(z[i].x));
            const u32 both = low | (u32)half_saturated(read.y * factor * gain[i].y * silu_fast(z[i].y)) << 16;
            if (exists(i)) *(u32*)(out + at + 64 * i + 2 * lane) = both;
        }
        return;
    }

    const bool holds_state = threadIdx.x < STATE_THREADS;
    const int column = lane % LANES, value_row = threadIdx.x / LANES * ROWS_PER_THREAD;
    float* const committed = state + (seq.slot * (VALUE_HEADS * VALUE_DIM) + value + value_row) * (size_t)KEY_DIM;
    const ApplyAccepted before{seq.accepted,
                               seq.n_accepted,
                               k + (previous * KEY_HEADS + group) * KEY_DIM,
                               u + previous * VALUE_HEADS * VALUE_DIM + value,
                               decay + previous * VALUE_HEADS + head,
                               (float*)accepted_rows,
                               factors};
    State own;
    if (holds_state) {
        own.load(committed, column);
        if (seq.n_accepted) before.fetch(0);
    }
    // The row's inputs, after those of the rows above it, the oldest first.
    float of_tap[TAPS][CHANNELS_PER_THREAD], input[TAPS][CHANNELS_PER_THREAD];
    UNROLL for (int t = 0; t < TAPS; ++t) {
        const int at = seq.n_accepted - (TAPS - 1 - t), id = seq.accepted.at(max(at, 0) & 63);
        const float* const from =
            at >= 0 ? inputs + (previous + id) * CHANNELS : tail + ((size_t)seq.slot * (TAPS - 1) + TAPS - 1 + at) * CHANNELS;
        UNROLL for (int i = 0; i < CHANNELS_PER_THREAD; ++i) {
            const Channel channel(i, group, value);
            of_tap[t][i] = channel.exists ? taps[t * CHANNELS + channel.of] : 0.0f;
            if (t < TAPS - 1) input[t][i] = channel.exists ? from[channel.of] : 0.0f;
        }
    }
    wait_on_dependent_grids();
    launch_dependent_grids();
    UNROLL for (int i = 0; i < CHANNELS_PER_THREAD; ++i) {
        const Channel channel(i, group, value);
        input[TAPS - 1][i] = channel.exists ? mixed[(size_t)s * CHANNELS + channel.of] : 0.0f;
    }
    if (holds_state && seq.n_accepted) {
        before.apply(own, column);
        if (!seq.kept()) own.store(committed, column);
    }
    UNROLL for (int i = 0; i < CHANNELS_PER_THREAD; ++i) {
        const Channel channel(i, group, value);
        float x = 0.0f;
        UNROLL for (int t = 0; t < TAPS; ++t) x = __fmaf_rn(of_tap[t][i], input[t][i], x);
        if (channel.exists) row[channel.at] = silu_fast(x);
        if (channel.exists && (!channel.is_key || writes_keys)) inputs[current * CHANNELS + channel.of] = input[TAPS - 1][i];
    }
    named_barrier_sync<CONVOLVED, CONV_THREADS>();
    // Several heads read the conv state of q and k: the last block to arrive updates these channels.
    const bool moves_tail = seq.n_accepted && !seq.kept();
    if (moves_tail && threadIdx.x == 0) {
        moves_all = atomicAdd(readers + s * KEY_HEADS + group, 1) == VALUE_HEADS / KEY_HEADS * SPLIT - 1;
        if (moves_all) readers[s * KEY_HEADS + group] = 0;
    }
    if (holds_state) {
        const UnitKeys unit = unit_keys(row, lane);
        float key[COLUMNS], query[COLUMNS];
        load_scaled(row + KEY_DIM, unit.of_k, column, key);
        load_scaled(row, unit.of_q, column, query);
        const int at = value_row + row_of(column);
        const float target = row[2 * KEY_DIM + at];
        const float predicted = own.read(key).reduce(column);
        const float read = own.read(query).reduce(column);
        named_barrier_sync<GATES, STATE_THREADS + 32>();
        const float change = __fmul_rn(gates[1], __fmaf_rn(-gates[0], predicted, target));
        if (column % LANES_PER_ROW == 0) {
            reads[at] = __fmaf_rn(change, unit.product(), __fmul_rn(gates[0], read));
            u[current * VALUE_HEADS * VALUE_DIM + value + at] = change;
        }
        __syncwarp();  // the warp's values are stored
        if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(smem_address(&read_out));
        if (writes_keys) {
            for (int c = threadIdx.x; c < KEY_DIM; c += STATE_THREADS)
                k[(current * KEY_HEADS + group) * KEY_DIM + c] = __fmul_rn(row[KEY_DIM + c], unit.of_k);
        }
    }
    if (SPLIT > 1) cluster_sum.wait_init();
    if (!moves_tail) return;
    named_barrier_sync<TAIL, CONV_THREADS>();
    UNROLL for (int i = 0; i < CHANNELS_PER_THREAD; ++i) {
        const Channel channel(i, group, value);
        if (!channel.exists || (channel.is_key && !moves_all)) continue;
        UNROLL for (int t = 0; t < TAPS - 1; ++t)
            tail[((size_t)seq.slot * (TAPS - 1) + t) * CHANNELS + channel.of] = input[t][i];
    }
}
