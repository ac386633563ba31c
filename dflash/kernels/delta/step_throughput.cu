// Linear attention of one pending row of each of many sequences (decode): the operations of step.cu, with the same bits.
//
// A task is a head of a sequence; block b takes tasks b, b + grid and so on. Roles of its warps:
//   consumers  Each holds 16 value rows of the state of a task in registers. Bulk copies bring those of the next tasks to shared
//              memory meanwhile, so that the memory is never idle.
//   producers  They take tasks in turn: convolve the row, fetch the accepted rows, and normalise the read-out of their
//              previous task once the consumers have finished that.
// The state is written if accepted rows were applied, unless the batch says that these rows are kept, see params.cuh.
// Before it waits for earlier kernels, a block reads the batch and the states; no other kernel of a pass accesses these.
//
// Grid: any number of blocks, one a multiprocessor. Block THREADS, shared memory: STATES states and PACKETS packets.
// Macros: those of stored_rows.cuh; TAPS of the conv; NORM_PARTS, blocks of a head in step.cu.
// Bytes: 4 * VALUE_HEADS * VALUE_DIM * KEY_DIM a sequence, twice if it is written.
#define ROWS_PER_THREAD 4
#define BLOCK_V VALUE_DIM
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/sm90.cuh"
#include "../gpu/include/tma.cuh"
#include "throughput_packet.cuh"

#ifndef NORM_PARTS
#error "NORM_PARTS must be defined"
#endif
static_assert(VALUE_DIM % 16 == 0 && KEY_DIM <= 128 && VALUE_DIM % NORM_PARTS == 0, "a warp has 16 value rows");

constexpr int CONSUMER_WARPS = VALUE_DIM / 16, THREADS = 32 * (CONSUMER_WARPS + PRODUCER_WARPS), STATES = 2;
constexpr int WARP_CELLS = 16 * KEY_DIM;  // of the state, of a consumer warp

// Consumer warp: state of a task after its accepted rows, read at the row.
__device__ __forceinline__ void consume(State& own, Packet& packet, const ThroughputArrays& arrays, const int* accepted,
                                        const int* buffers, const Task& task, int slot, float* committed) {
    const int lane = threadIdx.x % LANES, value = threadIdx.x / LANES * ROWS_PER_THREAD, n = packet.n_accepted;
    float key[COLUMNS], query[COLUMNS];
    Updates update;
#pragma unroll 1
    for (int i = 0; i < min(n, ACCEPTED_HERE); ++i) {
        load_columns(packet.keys[i], lane, key);
        update.load(packet.updates[i] + value);
        own.add(packet.factors[i], update, key);
    }
#pragma unroll 1
    for (int i = ACCEPTED_HERE; i < n; ++i) {
        const size_t row = (size_t)((buffers[task.sequence] & 1) * arrays.slots + slot) * STORED_ROWS +
                           accepted[task.sequence * PENDING + i];
        load_columns(arrays.k + (row * KEY_HEADS + key_head(task.head)) * KEY_DIM, lane, key);
        update.load(arrays.u + (row * VALUE_HEADS + task.head) * VALUE_DIM + value);
        own.add(arrays.decay[row * VALUE_HEADS + task.head], update, key);
    }
    if (n && !packet.kept) own.store(committed, lane);
    load_columns(packet.row + KEY_DIM, lane, key);
    load_columns(packet.row, lane, query);
    const int at = value + row_of(lane);
    const float target = packet.row[2 * KEY_DIM + at];
    const float predicted = own.read(key).reduce(lane);
    const RowSums reads = own.read(query);
    const float change = __fmul_rn(packet.beta, __fmaf_rn(-packet.decay, predicted, target));
    const float sum = __fmaf_rn(change, packet.product, __fmul_rn(packet.decay, reads.reduce(lane)));
    __syncwarp();  // all lanes have read `target`
    if (lane % LANES_PER_ROW == 0) packet.row[2 * KEY_DIM + at] = change, packet.reads[at] = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
step_throughput(const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps,
            const float* ssm_a, const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first,
            const int* slot, const int* accepted, const int* n_accepted, const int* buffer, float* tail, float* inputs,
            float* state, float* k, float* u, float* decay, int slots, int* readers, unsigned short* out) {
#if __CUDA_ARCH__ >= 900
    extern __shared__ float4 dynamic[];
    __shared__ __align__(8) u64 loaded[STATES][CONSUMER_WARPS], full[PACKETS], empty[PACKETS];
    float* const states = (float*)dynamic;
    Packet* const packets = (Packet*)(states + STATES * VALUE_DIM * KEY_DIM);
    const ThroughputArrays arrays{mixed,  gate, alpha, beta, taps,  ssm_a, ssm_dt,  ssm_norm, eps,
                              tail, inputs, k,    u,    decay, slots, readers, out};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32, step = gridDim.x;
    const int n_tasks = counts[1] * VALUE_HEADS;
    if (lane == 0) {
        if (warp < CONSUMER_WARPS) {
            for (int i = 0; i < STATES; ++i) mbarrier_init(smem_address(&loaded[i][warp]), 1);
        } else {
            for (int i = warp - CONSUMER_WARPS; i < PACKETS; i += PRODUCER_WARPS)
                mbarrier_init(smem_address(full + i), 1), mbarrier_init(smem_address(empty + i), CONSUMER_WARPS);
        }
    }
    __syncthreads();  // all barriers are initialised

    if (warp < CONSUMER_WARPS) {
        float* const here = states + warp * WARP_CELLS;
        const auto cells_of = [&](const Task& task, int slot_of_task) {
            return state + ((size_t)slot_of_task * VALUE_HEADS + task.head) * (VALUE_DIM * KEY_DIM) + warp * WARP_CELLS;
        };
        const auto fetch = [&](int number, int at, int slot_of_task) {
            if (number < n_tasks && elect_one()) {
                const u32 barrier = smem_address(&loaded[at][warp]);
                mbarrier_arrive_expect_tx(barrier, 4 * WARP_CELLS);
                bulk_copy(smem_address(here + at * (VALUE_DIM * KEY_DIM)), cells_of(Task(number), slot_of_task),
                          4 * WARP_CELLS, barrier);
            }
        };
        const auto slot_of = [&](int number) { return number < n_tasks ? slot[Task(number).sequence] : 0; };
        int number = blockIdx.x, slots_ahead[STATES + 1];  // slots of this task and of the next ones
        UNROLL for (int i = 0; i <= STATES; ++i) slots_ahead[i] = slot_of(number + i * step);
        for (int i = 0; i < STATES; ++i) fetch(number + i * step, i, slots_ahead[i]);
#pragma unroll 1
        for (int i = 0; number < n_tasks; ++i, number += step) {
            const int at = i % STATES;
            const Task task(number);
            Packet& packet = packets[i % PACKETS];
            mbarrier_wait(smem_address(&loaded[at][warp]), i / STATES & 1);
            State own;
            own.load(here + at * (VALUE_DIM * KEY_DIM) + lane / LANES * ROWS_PER_THREAD * KEY_DIM, lane % LANES);
            mbarrier_wait(smem_address(full + i % PACKETS), i / PACKETS & 1);
            __syncwarp();  // all lanes have read the state that the next copy overwrites
            fetch(number + STATES * step, at, slots_ahead[STATES]);
            const int own_slot = slots_ahead[0];
            UNROLL for (int a = 0; a < STATES; ++a) slots_ahead[a] = slots_ahead[a + 1];
            slots_ahead[STATES] = slot_of(number + (STATES + 1) * step);
            consume(own, packet, arrays, accepted, buffer, task, own_slot,
                    cells_of(task, own_slot) + lane / LANES * ROWS_PER_THREAD * KEY_DIM);
            __syncwarp();  // all lanes have used the packet
            if (lane == 0) mbarrier_arrive(smem_address(empty + i % PACKETS));
        }
    } else {
        int i = warp - CONSUMER_WARPS, number = blockIdx.x + i * step;
        RowInfo info{}, last{};
        if (number < n_tasks) info.load(first, slot, n_accepted, buffer, accepted, Task(number).sequence);
        wait_on_dependent_grids();
        launch_dependent_grids();
        bool pending = false;  // the read-out of the previous task
#pragma unroll 1
        for (; number < n_tasks || pending; i += PRODUCER_WARPS, number += PRODUCER_WARPS * step) {
            const bool exists = number < n_tasks;
            const RowInfo now = info;
            if (exists) {
                const int next = number + PRODUCER_WARPS * step;
                if (next < n_tasks) info.load(first, slot, n_accepted, buffer, accepted, Task(next).sequence);
                produce(arrays, Task(number), now, packets[i % PACKETS], lane);
                if (lane == 0) mbarrier_arrive(smem_address(full + i % PACKETS));
            }
            if (pending) {
                const int done = i - PRODUCER_WARPS;
                norm_read_out(arrays, Task(number - PRODUCER_WARPS * step), last, packets[done % PACKETS], lane, [&] {
                    mbarrier_wait(smem_address(empty + done % PACKETS), done / PACKETS & 1);
                    __syncwarp();
                });
                __syncwarp();  // all lanes have read the packet
            }
            last = now, pending = exists;
        }
    }
#endif
}
