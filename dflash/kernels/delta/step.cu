// Linear attention of pending rows (decode): conv, SiLU, unit q and k, gated delta rule, gated norm.
//
//   S = decay * S;  u = beta * (v - S k);  S += outer(u, k);  o = S q;  out = half(o / rms(o) * weight * silu(gate))
//
// A block handles BLOCK_V value rows of one head of one sequence. Roles of its warps:
//   consumers  hold the state in registers. They apply the accepted rows of the previous pass, so the state is written at
//              most once, then visit the rows one by one, each from the state after its parent. A row goes through the same
//              operations on the same numbers in a chain, in a tree and in a pass of its own.
//   producers  load and convolve rows ahead of the consumers, and normalise the read-outs after them. Only the recurrence
//              itself is on the critical path.
// The SPLIT blocks of a head form a cluster and exchange the sums of squares of the norm (FUSE_NORM 1), or leave the norm to
// gated_norm.cu. Before it waits for earlier kernels, a block reads the batch, the states and the conv states, and writes
// its state: no other kernel of a pass accesses these.
//
// Grid (SPLIT, VALUE_HEADS, sequences or fewer), block THREADS, shared memory: `Smem` for row_capacity rows and
// saved_capacity states.
// Macros: those of stored_rows.cuh; TAPS of the conv; SPLIT, blocks of a head; FUSE_NORM, 0
// or 1; ROWS_PER_THREAD, value rows of a thread, 2 or 4; STAGE_INPUTS, 1 to copy inputs to shared memory. The last two
// change no bit of a result. In a tensor split PEERS, RANK and PEER_DATA, see signals.cuh: results go to all GPUs, with `signals`
// signals unless PEER_DATA.
// Bytes: 4 * VALUE_HEADS * VALUE_DIM * KEY_DIM a sequence, twice if rows were accepted and are not kept.
#ifndef SPLIT
#error "SPLIT must be defined"
#endif
#define BLOCK_V (VALUE_DIM / SPLIT)
#include "../gpu/include/pdl.cuh"
#include "consumer.cuh"
#include "epilogue.cuh"
#include "gates.cuh"
#include "load.cuh"
#include "producer.cuh"

static_assert(VALUE_DIM % SPLIT == 0 && BLOCK_V % 16 == 0 && BLOCK_V <= 64 && KEY_DIM <= 128,
              "registers hold 64 x 128 of a state");
static_assert(32 * PRODUCER_WARPS >= MAX_ROWS && STAGE_ROWS % PRODUCER_WARPS == 0,
              "a thread for each row, all producer warps for each stage");
static_assert(TAPS >= 2 && TAPS <= 8, "2 to 8 taps");
#if __CUDA_ARCH__ < 900
static_assert(!CLUSTERED, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

extern "C" __global__ void __launch_bounds__(THREADS, CONSUMERS < 256 ? 2 : 1) __cluster_dims__(CLUSTERED ? SPLIT : 1, 1, 1)
step(const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
     const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first, const int* parent,
     const int* slot, const int* accepted, const int* n_accepted, const int* buffer, float* tail, float* inputs,
     float* state, float* k, float* u, float* decay, int slots, int* readers, unsigned short* out, float* read_out,
     const unsigned long long* peers, unsigned long long signals, int row_capacity, int saved_capacity) {
#if PEERS
    __shared__ PeerTable peer_table;
    load_peers(peer_table, peers);
    const PeerTable* const table = &peer_table;
#else
    const PeerTable* const table = nullptr;
#endif
    extern __shared__ float4 dynamic[];
    __shared__ TreeOrder tree;
    __shared__ NormSums cluster_sum;
    __shared__ Pipeline pipeline;
    __shared__ bool moves_tail;
    const Smem smem((float*)dynamic, row_capacity, saved_capacity);
    const Arrays arrays{mixed, gate, taps, ssm_norm, eps, tail, inputs, k, u, decay, readers, out, read_out, table};
    const Block block{(int)blockIdx.x, (int)blockIdx.y};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // uniform: the compiler sees one value for all lanes
    const Producer producer{warp - CONSUMERS / 32, (int)threadIdx.x - CONSUMERS, (int)threadIdx.x % 32};

    // All loads about a sequence are issued together; the first time before it is known whether there is a sequence.
    const int n_sequences = counts[1];
    SequenceInfo info;
    info.load(first, slot, n_accepted, buffer, accepted, blockIdx.z);
    // The first sequence begins at row 0; `parent` has at least MAX_ROWS elements.
    int above = blockIdx.z == 0 && producer.row >= 0 && producer.row < MAX_ROWS ? parent[producer.row] : -1;
    pipeline.init();
    if (CLUSTERED) cluster_sum.init();
    __syncthreads();  // all barriers are initialised
    int turn = 0;
    u32 phases = 0;  // bit i: the barriers of stage i are in an odd phase
#pragma unroll 1
    for (int s = blockIdx.z; s < n_sequences; s += gridDim.z) {
        const bool is_first = s == (int)blockIdx.z;
        const Sequence seq(info, s, slots, phases);
        if (producer.number < 0) {
            const int lane = threadIdx.x % LANES;
            const size_t value = seq.slot * VALUE_HEADS * VALUE_DIM + block.channel + threadIdx.x / LANES * ROWS_PER_THREAD;
            float* const committed = state + value * KEY_DIM;
            State own;
            own.load(committed, lane);
            if (seq.n_accepted) {
                const ApplyAccepted before{seq.accepted,
                                           seq.n_accepted,
                                           k + (seq.prev * KEY_HEADS + block.group) * KEY_DIM,
                                           u + seq.prev * VALUE_HEADS * VALUE_DIM + block.channel,
                                           decay + seq.prev * VALUE_HEADS + block.head,
                                           smem.accepted,
                                           smem.factors};
                before.fetch(0);
                before.apply(own, lane);
                if (!seq.kept) own.store(committed, lane);
            }
            if (is_first) {
                wait_on_dependent_grids();
                launch_dependent_grids();  // else the next kernel loads weights while this one loads its inputs
            }
            consume_rows(own, seq.n_rows, tree, smem, committed, pipeline, phases, lane);
            if (CLUSTERED && is_first) cluster_sum.wait_init();
        } else {
            const float rate = ssm_a[block.head], shift = ssm_dt[block.head];
            load_taps(arrays, smem, block, seq, producer);
            if (is_first) wait_on_dependent_grids();
            const size_t gate_at = (size_t)(seq.start + min(producer.row, seq.n_rows - 1)) * VALUE_HEADS + block.head;
            const float alpha_row = alpha[gate_at], beta_row = beta[gate_at];
            load_rows(arrays, smem, block, seq, producer, pipeline);
            bool chain = true;
            if (seq.n_rows > 1) {
                if (s) above = producer.row < seq.n_rows ? parent[seq.start + producer.row] : -1;
                chain = named_barrier_all<32 * PRODUCER_WARPS>(2, producer.row >= seq.n_rows || above == producer.row - 1);
                if (!chain) plan_order(tree, producer.row, above, seq.n_rows, saved_capacity);
            }
            if (producer.row < seq.n_rows) {
                const float decay = expf(log_decay(alpha_row, rate, shift));
                store_gates(arrays, smem, block, seq, producer.row, tree, chain, decay, beta_of(beta_row));
            }
            cp_async_wait_group<0>();
            named_barrier_sync<32 * PRODUCER_WARPS>(2);
            int arrived = 0;  // blocks that have read these channels of the conv state before
            if (seq.writes_states() && producer.row == 0) arrived = atomicAdd(readers + s * KEY_HEADS + block.group, 1);
            produce_rows(arrays, smem, block, seq, producer, tree, chain, pipeline);
            if (seq.writes_states()) move_tail(arrays, smem, block, seq, producer, arrived, moves_tail);
            if (CLUSTERED && is_first) cluster_sum.wait_init();
            norm_rows(arrays, smem, block, seq, producer, tree, chain, pipeline, cluster_sum, turn);
        }
        phases ^= (2u << (seq.n_stages - 1)) - 1;
        if (s + gridDim.z < n_sequences)
            info.load(first, slot, n_accepted, buffer, accepted, s + gridDim.z), __syncthreads();
    }
    if ((int)blockIdx.z >= n_sequences) {
        wait_on_dependent_grids();
        if (CLUSTERED) cluster_sum.wait_init();
    }
#if PEERS && !PEER_DATA
    const u32 block_number = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    signal_peers(peer_table, signals, block_number, gridDim.x * gridDim.y * gridDim.z);
#endif
}
