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
        const float* const line = shared.rows + lowest(again) * LOCAL;
        float key[COLUMNS];
        load_columns(line + WIDTH, lane, key);
        Amounts amount;
        amount.load(line + 2 * WIDTH + value);
        own.add(shared.laws[4 * lowest(again)], amount, key);
    }
}

// Key and query of a row.
struct Row {
    float key[COLUMNS], query[COLUMNS];

    __device__ __forceinline__ void load(const float* line, int lane) {
        load_columns(line, lane, query);
        load_columns(line + WIDTH, lane, key);
    }
};

// Stores without a branch, around which nothing could be scheduled.
__device__ __forceinline__ void store_if(bool wanted, float* global, float x) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.global.f32 [%1], %2; }" ::"r"((int)wanted), "l"(global), "f"(x));
}
__device__ __forceinline__ void store_shared_if(bool wanted, float* shared, float x) {
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p st.shared.f32 [%1], %2; }" ::"r"((int)wanted),
                 "r"(address(shared)), "f"(x));
}

// What a row changes: the state goes on to its children as `own.add(kept, amount, key)`.
struct Change {
    float kept;
    Amounts amount;

    __device__ __forceinline__ void leave_out() {
        kept = 1.0f;
#pragma unroll
        for (int r = 0; r < ROWS; ++r) amount.of[r] = 0.0f;
    }
};

// Visit the row at `line`. `change` and `read` are where the value goes of the row that the lane names. What the row reads is
// no part of what the next one waits for.
template <bool CHAIN>
__device__ __forceinline__ Change visit(const State& own, const Row& row, float* line, const float* law, float* change,
                                        float* read, int lane) {
    float* const value = line + 2 * WIDTH + threadIdx.x / LANES * ROWS + row_of(lane);
    const float wanted = *value;
    const float4 laws = *(const float4*)law;
    const bool writes = lane % APART == 0;
    const float known = own.read(row.key).reduce(lane);
    const Sums reads = own.read(row.query);
    const float mine = __fmul_rn(laws.y, __fmaf_rn(-laws.x, known, wanted));
    Change made;
    made.kept = laws.x;
    made.amount.spread(mine, lane);
    const float sum = __fmaf_rn(mine, laws.z, __fmul_rn(laws.x, reads.reduce(lane)));
    if (!CHAIN) {
        __syncwarp();
        if (writes) *value = mine;
    }
    store_if(writes, change, mine);
    if (FUSED) {
        store_shared_if(writes, read, sum);
    } else {
        store_if(writes, read, sum);
    }
    return made;
}

// Visit n rows of a chain: `changes` and `reads` are where the thread's values of the first row go, those of the next ones
// follow. From row to row the state is changed and read in one go.
__device__ __forceinline__ void visit_chain(State& own, int n, const Shared& shared, float* changes, float* reads,
                                            int reads_stride, int lane) {
    float *line = shared.rows, *law = shared.laws;
    Row a, b;
    Change made;
    const auto visit_next = [&](const Row& row) {
        made = visit<true>(own, row, line, law, changes, reads, lane);
        line += LOCAL, law += 4, changes += HEADS * VALUES, reads += reads_stride;
    };
    if (n == 0) return;
    a.load(line, lane);
    visit_next(a);
#pragma unroll 1
    while (--n) {
        b.load(line, lane);
        own.add(made.kept, made.amount, a.key);
        visit_next(b);
        if (--n == 0) break;
        a.load(line, lane);
        own.add(made.kept, made.amount, b.key);
        visit_next(a);
    }
}

// The same of a tree, in the order of its plan. What a row without children changes is left out by factors of 1 and 0, so that
// ordinary rows follow each other as in a chain.
__device__ __forceinline__ void visit_tree(State& own, int n, const Tree& tree, const Shared& shared, float* changes,
                                           float* reads, int reads_stride, const float* committed, int lane) {
    const u64 leaves = tree.leaves, apart = tree.apart;
    Row row;
    Change made;
    float key[COLUMNS];
    int i = 0, at = tree.order[0], last = -1;
    const auto copy = [](float(&to)[COLUMNS], const float(&from)[COLUMNS]) {
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) to[c] = from[c];
    };
    const auto visit_next = [&] {
        made = visit<false>(own, row, shared.rows + at * LOCAL, shared.laws + 4 * at, changes + at * HEADS * VALUES,
                            reads + at * reads_stride, lane);
        if (leaves >> at & 1) made.leave_out();
        last = at, at = tree.order[min(++i, n - 1)];
    };
    while (i < n) {
        row.load(shared.rows + at * LOCAL, lane);
        if (last >= 0) own.add(made.kept, made.amount, key);
        if (last >= 0 && (tree.aside >> last & 1)) {
            own.store(shared.aside + (tree.place[last] * OWN + threadIdx.x / LANES * ROWS) * WIDTH, lane);
        }
        if (tree.start[at] != GO_ON) {
            __syncwarp();
            go_back(own, tree, at, shared, committed, lane);
        }
        visit_next();
#pragma unroll 1
        while (i < n && !(apart >> i & 1)) {
            copy(key, row.key);
            row.load(shared.rows + at * LOCAL, lane);
            own.add(made.kept, made.amount, key);
            visit_next();
        }
        copy(key, row.key);
    }
}
