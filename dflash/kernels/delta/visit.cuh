// The way of a state from row to row.
#pragma once

// Bring the registers to the state that the parent of `row` left.
__device__ __forceinline__ void go_back(State& own, const Tree& tree, int row, const Shared& shared, const float* committed,
                                        int lane) {
    const int start = tree.start[row], value = threadIdx.x / LANES * ROWS;
    u64 again = tree.parent[row] >= 0 ? tree.path[tree.parent[row]] : 0;
    if (start == COMMITTED) {
        own.load(committed, lane);
    } else {
        own.load(shared.aside + (tree.place[start] * OWN + value) * WIDTH, lane);
        again &= ~tree.path[start];
    }
#pragma unroll 1
    for (; again; again &= again - 1) {
        const int position = tree.position[lowest(again)];
        const float* const line = shared.rows + position * LOCAL;
        float key[COLUMNS];
        load_columns(line + WIDTH, lane, key);
        Amounts amount;
        amount.load(line + 2 * WIDTH + value);
        own.add(shared.laws[4 * position], amount, key);
    }
}

// A store without a branch, around which nothing could be scheduled.
__device__ __forceinline__ void store_shared_if(bool wanted, float* shared, float x) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.shared.f32 [%1], %2; }" ::"r"((int)wanted),
                 "r"(smem_address(shared)), "f"(x));
}

// Visit n rows in the order in which they lie, each group once it is ready. From row to row the state is changed and read in
// one go; what a row reads is no part of what the next one waits for. What a row without children changes is left out by
// factors of 1 and 0. `used` tells the phase of each group's barriers.
__device__ __forceinline__ void visit_all(State& own, int n, const Tree& tree, const Shared& shared, const float* committed,
                                          Groups& groups, u32 used, int lane) {
    const int mine = threadIdx.x / LANES * ROWS + row_of(lane);
    const bool writes = lane % APART == 0;
    const float *line = shared.rows, *law = shared.laws;
    float *read = shared.reads + mine, *value = shared.rows + 2 * WIDTH + mine;
    float a[COLUMNS], b[COLUMNS]{};
    Amounts amount{};
    int flags = 0, i = 0;
    const auto visit = [&](float(&key)[COLUMNS], const float(&last_key)[COLUMNS]) {
        float query[COLUMNS];
        load_columns(line + WIDTH, lane, key);
        load_columns(line, lane, query);
        const float4 now = *(const float4*)law;
        const float wanted = *value;
        own.add(amount, last_key);
        const float known = own.read(key).reduce(lane);
        const Sums reads = own.read(query);
        flags = __float_as_int(now.w);
        const bool leaf = flags & LEAF;
        own.scale(leaf ? 1.0f : now.x);
        const float change = __fmul_rn(now.y, __fmaf_rn(-now.x, known, wanted));
        amount.spread(change, lane);
#pragma unroll
        for (int r = 0; r < ROWS; ++r) amount.of[r] = leaf ? 0.0f : amount.of[r];
        const float sum = __fmaf_rn(change, now.z, __fmul_rn(now.x, reads.reduce(lane)));
        __syncwarp();  // all lanes have what was wanted
        store_shared_if(writes, value, change);
        store_shared_if(writes, read, sum);
        line += LOCAL, law += 4, value += LOCAL, read += OWN, ++i;
    };
    do {
        if (flags & THEN_APART) {
            const int last = tree.order[i - 1], at = tree.order[i];
            own.add(amount, b);
            if (tree.aside >> last & 1) {
                own.store(shared.aside + (tree.place[last] * OWN + threadIdx.x / LANES * ROWS) * WIDTH, lane);
            }
            if (tree.start[at] != GO_ON) {
                __syncwarp();
                go_back(own, tree, at, shared, committed, lane);
            }
            amount = Amounts{};
        }
        if (i % GROUP == 0) {
            if (i) mbarrier_arrive(smem_address(groups.visited + i / GROUP - 1));
            mbarrier_wait_warp(groups.ready + i / GROUP, used >> i / GROUP & 1);
        }
#pragma unroll 1
        for (;;) {
            visit(a, b);
            if (flags & (THEN_APART | THEN_STOP)) {
                if constexpr (ROWS == 2) {
                    own.add(amount, a), amount = Amounts{};
                } else {  // with fewer registers
#pragma unroll
                    for (int c = 0; c < COLUMNS; ++c) b[c] = a[c];
                }
                break;
            }
            visit(b, a);
            if (flags & (THEN_APART | THEN_STOP)) break;
        }
    } while (i < n);
    mbarrier_arrive(smem_address(groups.visited + (n - 1) / GROUP));
}
