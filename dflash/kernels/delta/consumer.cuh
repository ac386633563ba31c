// Consumer threads: they hold the state of a head and apply the delta rule row by row, starting from the state after each
// row's parent:
//
//   S = decay * S;  u = beta * (v - S k);  S += outer(u, k);  o = S q
#pragma once
#include "params.cuh"

// Restore the state after the parent of `row`.
__device__ __forceinline__ void restore_state(State& own, const TreeOrder& tree, int row, const Smem& smem,
                                              const float* committed, int lane) {
    const int start = tree.start[row], value = threadIdx.x / LANES * ROWS_PER_THREAD;
    u64 replayed = tree.parent[row] >= 0 ? tree.path[tree.parent[row]] : 0;
    if (start == COMMITTED) {
        own.load(committed, lane);
    } else {
        own.load(smem.saved + (tree.saved_slot[start] * BLOCK_V + value) * KEY_DIM, lane);
        replayed &= ~tree.path[start];
    }
#pragma unroll 1
    for (; replayed; replayed &= replayed - 1) {
        const int position = tree.position[lowest(replayed)];
        const float* const line = smem.rows + position * BLOCK_CHANNELS;
        float key[COLUMNS];
        load_columns(line + KEY_DIM, lane, key);
        Updates update;
        update.load(line + 2 * KEY_DIM + value);
        own.add(smem.gates[4 * position], update, key);
    }
}

// Store if `condition`, without a branch: the compiler schedules no instruction across a branch.
__device__ __forceinline__ void store_shared_if(bool condition, float* shared, float x) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.shared.f32 [%1], %2; }" ::"r"((int)condition),
                 "r"(smem_address(shared)), "f"(x));
}

// Visit n rows in order, each stage once it is full. The read-out of a row is off the critical path. A leaf leaves the state
// unchanged: its factors are 1 and 0. The loop has one copy of a row: a multiprocessor keeps 128 KiB of code. Bit i of
// `phases`: phase of the barriers of stage i.
__device__ __forceinline__ void consume_rows(State& own, int n, const TreeOrder& tree, const Smem& smem,
                                             const float* committed, Pipeline& pipeline, u32 phases, int lane) {
    const int value_row = threadIdx.x / LANES * ROWS_PER_THREAD + row_of(lane);
    const bool writes = lane % LANES_PER_ROW == 0;
    const float *line = smem.rows, *gate = smem.gates;
    float *read = smem.reads + value_row, *value = smem.rows + 2 * KEY_DIM + value_row;
    int flags = 0, i = 0;
    do {
        if (flags & THEN_SWITCH) {
            const int last = tree.order[i - 1], at = tree.order[i];
            if (tree.saved >> last & 1) {
                own.store(smem.saved + (tree.saved_slot[last] * BLOCK_V + threadIdx.x / LANES * ROWS_PER_THREAD) * KEY_DIM,
                          lane);
            }
            if (tree.start[at] != CONTINUE) {
                __syncwarp();  // the state of `last` is saved before another lane restores it
                restore_state(own, tree, at, smem, committed, lane);
            }
        }
        if (i % STAGE_ROWS == 0) {
            if (i) mbarrier_arrive(smem_address(pipeline.empty + i / STAGE_ROWS - 1));
            mbarrier_wait_warp(pipeline.full + i / STAGE_ROWS, phases >> i / STAGE_ROWS & 1);
        }
#pragma unroll 1
        do {
            float key[COLUMNS], query[COLUMNS];
            load_columns(line + KEY_DIM, lane, key);
            load_columns(line, lane, query);
            const float4 row_gates = *(const float4*)gate;
            const float target = *value;
            const float predicted = own.read(key).reduce(lane);
            const RowSums reads = own.read(query);
            flags = __float_as_int(row_gates.w);
            const bool leaf = flags & LEAF;
            own.scale(leaf ? 1.0f : row_gates.x);
            const float change = __fmul_rn(row_gates.y, __fmaf_rn(-row_gates.x, predicted, target));
            Updates update;
            update.spread(change, lane);
            UNROLL for (int r = 0; r < ROWS_PER_THREAD; ++r) update.of[r] = leaf ? 0.0f : update.of[r];
            const float sum = __fmaf_rn(change, row_gates.z, __fmul_rn(row_gates.x, reads.reduce(lane)));
            __syncwarp();  // all lanes have read `target`
            store_shared_if(writes, value, change);
            store_shared_if(writes, read, sum);
            own.add(update, key);
            line += BLOCK_CHANNELS, gate += 4, value += BLOCK_CHANNELS, read += BLOCK_V, ++i;
        } while (!(flags & (THEN_SWITCH | THEN_STOP)));
    } while (i < n);
    mbarrier_arrive(smem_address(pipeline.empty + (n - 1) / STAGE_ROWS));
}
