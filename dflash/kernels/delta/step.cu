// The middle of a linear-attention layer, for pending rows: conv, SiLU, unit q and k, gated delta rule, gated norm.
//
//   S = decay * S;  u = strength * (v - S k);  S += outer(u, k);  o = S q;  out = half(o / rms(o) * weight * silu(gate))
//
// A block has OWN value rows of one head of one sequence, in registers all along. First it applies the rows of the pass
// before that are text now, so the state is written at most once; then it visits its rows one after another, each from the
// state of its parent. So a row goes through the same operations on the same numbers in a chain, in a tree and alone.
// The SPLIT blocks of a head are a cluster and share the sums of squares of the norm (FUSED), or leave the norm to another
// kernel. Of the channels of q and k, which several heads convolve, the last block that read them moves the tail.
//
// Before it waits for the kernel ahead it reads the batch and the memories, and writes the state: nothing else in a pass
// touches them.
//
// Grid (SPLIT, HEADS, sequences or fewer), block THREADS; shared: see `Shared`, for `room` rows and `places` states.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value; TAPS; SPLIT; FUSED; ROWS,
// value rows of a thread, 2 or 4 (no bit depends on it).
// Bytes: 4 * HEADS * VALUES * WIDTH a sequence, twice if rows were kept.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES) || !defined(TAPS) || !defined(SPLIT) || \
    !defined(FUSED) || !defined(ROWS)
#error "GROUPS, HEADS, WIDTH, VALUES, TAPS, SPLIT, FUSED and ROWS must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES, OWN = VALUES / SPLIT, PENDING = 64;
constexpr int LANES = 8, THREADS = OWN / ROWS * LANES;
#include "../formats/half.cuh"
#include "../launch.cuh"
#include "../conv/above.cuh"
#include "address.cuh"
#include "cluster.cuh"
#include "gates.cuh"
#include "state.cuh"
#include "kept.cuh"
#include "tree.cuh"

constexpr bool CLUSTERED = FUSED && SPLIT > 1;
constexpr int LOCAL = 2 * WIDTH + OWN;  // channels of a block: those of q, of k, of its values
constexpr int WARPS = THREADS / 32, TOGETHER = 4;
static_assert(VALUES % SPLIT == 0 && OWN % 16 == 0 && OWN <= 64 && WIDTH <= 128, "registers hold 64 x 128 of a state");
static_assert(THREADS >= MOST_ROWS && THREADS % 32 == 0, "a thread for each row of a tree");
static_assert(HEADS % GROUPS == 0 && TAPS >= 2 && TAPS <= 8, "heads share keys; 2 to 8 taps");
#if __CUDA_ARCH__ < 900
static_assert(!CLUSTERED, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

struct Shared {
    float *taps, *rows, *reads, *gates, *aside, *laws, *sums;

    __device__ __forceinline__ Shared(float* from, int room, int places) {
        taps = from;                                          // (TAPS, LOCAL), and the TAPS - 1 rows above the first one
        rows = taps + (2 * TAPS - 1) * LOCAL;                 // (room, LOCAL): q, k, v; later u in place of v
        reads = rows + room * LOCAL;                          // (room, OWN), as the one after it
        gates = reads + (FUSED ? room * OWN : 0);
        aside = gates + (FUSED ? room * OWN : 0);             // (places, OWN, WIDTH)
        laws = aside + places * OWN * WIDTH;                  // (room, 4): part kept, strength, q . k
        sums = laws + 4 * room;                               // (2, SPLIT, room)
    }
};

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int i = 16; i; i /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    return x;
}

// The conv of one channel over N rows up from `last`, in place. The inputs also go to `remembered` unless that is null.
template <bool CHAIN, int N>
__device__ __forceinline__ void convolve(const float (&weight)[TAPS], float* column, int last, const Tree& tree,
                                         float* remembered) {
    float total[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
        const int row = last - r;
        const float input = column[row * LOCAL];
        total[r] = 0.0f;
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            const int up = CHAIN ? row - (TAPS - 1 - t) : tree.above[row][TAPS - 2 - t];
            total[r] = __fmaf_rn(weight[t], column[up * LOCAL], total[r]);
        }
        total[r] = __fmaf_rn(weight[TAPS - 1], input, total[r]);
        if (remembered) remembered[row * CHANNELS] = input;
    }
#pragma unroll
    for (int r = 0; r < N; ++r) column[(last - r) * LOCAL] = silu(total[r]);
}

// All n rows: from the last one up, so that all inputs are still there.
template <bool CHAIN>
__device__ __forceinline__ void convolve_rows(const float* taps, float* column, int n, const Tree& tree, float* remembered) {
    float weight[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) weight[t] = taps[t * LOCAL];
    int last = n - 1;
#pragma unroll 1
    for (; last >= TOGETHER - 1; last -= TOGETHER) convolve<CHAIN, TOGETHER>(weight, column, last, tree, remembered);
#pragma unroll 1
    for (; last >= 0; --last) convolve<CHAIN, 1>(weight, column, last, tree, remembered);
}

// Unit keys, and unit queries times WIDTH^-0.5, of rows `row` and `row + WARPS`, if there is one, by one warp. The keys also
// go to `remembered` unless that is null.
__device__ __forceinline__ void normalize(const Shared& shared, int row, int n, float* remembered) {
    constexpr int EACH = (WIDTH + 31) / 32, BOTH = 2;
    const int lane = threadIdx.x % 32;
    float q[BOTH][EACH], k[BOTH][EACH], qq[BOTH], kk[BOTH], qk[BOTH];
#pragma unroll
    for (int r = 0; r < BOTH; ++r) {
        const float* const line = shared.rows + (row + r * WARPS < n ? row + r * WARPS : row) * LOCAL + lane;
        qq[r] = kk[r] = qk[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool there = WIDTH % 32 == 0 || i * 32 + lane < WIDTH;
            q[r][i] = there ? line[i * 32] : 0.0f, k[r][i] = there ? line[WIDTH + i * 32] : 0.0f;
            qq[r] = __fmaf_rn(q[r][i], q[r][i], qq[r]), kk[r] = __fmaf_rn(k[r][i], k[r][i], kk[r]);
            qk[r] = __fmaf_rn(q[r][i], k[r][i], qk[r]);
        }
    }
#pragma unroll
    for (int i = 16; i; i /= 2)
#pragma unroll
        for (int r = 0; r < BOTH; ++r) {
            qq[r] = __fadd_rn(qq[r], __shfl_xor_sync(~0u, qq[r], i));
            kk[r] = __fadd_rn(kk[r], __shfl_xor_sync(~0u, kk[r], i));
            qk[r] = __fadd_rn(qk[r], __shfl_xor_sync(~0u, qk[r], i));
        }
#pragma unroll
    for (int r = 0; r < BOTH; ++r) {
        const int at = row + r * WARPS;
        if (at >= n) continue;
        const float of_q = __fmul_rn(rsqrtf((float)WIDTH), rsqrtf(qq[r] + 1e-6f)), of_k = rsqrtf(kk[r] + 1e-6f);
        float* const line = shared.rows + at * LOCAL + lane;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (WIDTH % 32 != 0 && i * 32 + lane >= WIDTH) continue;
            const float key = __fmul_rn(k[r][i], of_k);
            line[i * 32] = __fmul_rn(q[r][i], of_q), line[WIDTH + i * 32] = key;
            if (remembered) remembered[at * GROUPS * WIDTH + i * 32 + lane] = key;
        }
        if (lane == 0) shared.laws[4 * at + 2] = __fmul_rn(__fmul_rn(qk[r], of_q), of_k);
    }
}

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

// Visit the row at `line`; the state goes on to its children unless it is a leaf. `change` and `read` are where the thread's
// value goes.
__device__ __forceinline__ void visit(State& own, const Row& row, float* line, const float* law, bool leaf, float* change,
                                      float* read, int lane) {
    float* const value = line + 2 * WIDTH + threadIdx.x / LANES * ROWS + row_of(lane);
    const float wanted = *value;
    const float4 laws = *(const float4*)law;
    const float sum = own.read(row.key, row.query).reduce(lane);
    const float mine = __fmul_rn(laws.y, __fmaf_rn(-laws.x, sum, wanted));  // of the lower lanes
    Amounts amount;
    amount.spread(mine);
    if (lane % APART == 0) {
        if (lane < 4) *value = mine, *change = mine;
        if (lane >= 4) *read = __fmaf_rn(amount.pick(row_of(lane)), laws.z, __fmul_rn(laws.x, sum));
    }
    if (!leaf) own.add(laws.x, amount, row.key);
}

// Visit n rows: `changes` and `reads` are where the thread's values of the first row go, those of the next ones follow.
__device__ __forceinline__ void visit_chain(State& own, int n, const Shared& shared, float* changes, float* reads,
                                            int reads_stride, int lane) {
    float* line = shared.rows;
    const float* law = shared.laws;
    Row a, b;
    a.load(line, lane);
    int i = 0;
    const auto visit_next = [&](const Row& row, Row& next) {
        const bool last = ++i >= n;
        if (!last) next.load(line + LOCAL, lane);
        visit(own, row, line, law, last, changes, reads, lane);
        line += LOCAL, law += 4, changes += HEADS * VALUES, reads += reads_stride;
    };
#pragma unroll 1
    while (i + 1 < n) visit_next(a, b), visit_next(b, a);
    if (i < n) visit_next(a, b);
}

__device__ __forceinline__ void visit_tree(State& own, int n, const Tree& tree, const Shared& shared, float* changes,
                                           float* reads, int reads_stride, const float* committed, int lane) {
#pragma unroll 1
    for (int i = 0; i < n; ++i) {
        const int at = tree.order[i];
        float* const line = shared.rows + at * LOCAL;
        Row row;
        row.load(line, lane);
        if (tree.start[at] != GO_ON) {
            __syncwarp();
            go_back(own, tree, at, shared, committed, lane);
        }
        const bool leaf = tree.leaves >> at & 1;
        visit(own, row, line, shared.laws + 4 * at, leaf, changes + at * HEADS * VALUES, reads + at * reads_stride, lane);
        if (tree.aside >> at & 1) {
            own.store(shared.aside + (tree.place[at] * OWN + threadIdx.x / LANES * ROWS) * WIDTH, lane);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 256 / THREADS) __cluster_dims__(CLUSTERED ? SPLIT : 1, 1, 1) step(
    const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
    const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first, const int* parent,
    const int* slot, const int* kept, const int* n_kept, const int* side, float* tail, float* inputs, float* state, float* k,
    float* u, float* decay, int slots, int* readers, unsigned short* out, float* read_out, int room, int places) {
    dependents_may_launch();
    extern __shared__ float4 dynamic[];
    __shared__ Tree tree;
    __shared__ Exchange exchange;
    __shared__ bool moves_tail;
    const Shared shared((float*)dynamic, room, places);
    const int part = blockIdx.x, head = blockIdx.y, group = head % GROUPS, lane = threadIdx.x % LANES;
    const int channel = head * VALUES + part * OWN;  // of all heads' values, the block's first
    const bool keeps_keys = head < GROUPS && part == 0;
    const auto channel_of = [&](int x) {
        return x < 2 * WIDTH ? (x / WIDTH * GROUPS + group) * WIDTH + x % WIDTH : 2 * (GROUPS - 1) * WIDTH + channel + x;
    };
    const float gain = ssm_norm[part * OWN + threadIdx.x % OWN], rate = ssm_a[head], shift = ssm_dt[head];
    const int n_sequences = counts[1];
    if (CLUSTERED) exchange.prepare();
    bool waited = false;
    int turn = 0;
#pragma unroll 1
    for (int s = blockIdx.z; s < n_sequences; s += gridDim.z) {
        const int start = first[s], n_rows = first[s + 1] - start, here = slot[s], n_before = n_kept[s];
        const size_t old = (size_t)(side[s] * slots + here) * PENDING;
        const size_t now = (size_t)((1 - side[s]) * slots + here) * PENDING;
        float* const committed = state + ((size_t)here * HEADS * VALUES + channel + threadIdx.x / LANES * ROWS) * WIDTH;
        State own;
        own.load(committed, lane);
        float* const text = tail + (size_t)here * (TAPS - 1) * CHANNELS;
        const Above above{text, inputs + old * CHANNELS, kept + s * PENDING, n_before};
#pragma unroll 1
        for (int i = threadIdx.x; i < (2 * TAPS - 1) * (LOCAL / 4); i += THREADS) {
            const int t = i / (LOCAL / 4), x = i % (LOCAL / 4) * 4;
            const float* const from = t < TAPS ? taps + t * CHANNELS : above.row(2 * TAPS - 1 - t);
            copy_16(address(shared.taps + t * LOCAL + x), from + channel_of(x));
        }
        const Kept before{above.kept, n_before, k + (old * GROUPS + group) * WIDTH, u + old * HEADS * VALUES + channel,
                          decay + old * HEADS + head, shared.rows, shared.laws, LOCAL, room};
        before.fetch(0);
        bool chain = true;
        if (n_rows > 1) {
            const bool follows = threadIdx.x >= n_rows || parent[start + threadIdx.x] == (int)threadIdx.x - 1;
            chain = __syncthreads_and(follows);
            if (!chain) plan(tree, parent + start, n_rows, places);
        }
        if (n_before) {
            before.apply(own, lane);
            own.store(committed, lane);
        }
        if (!waited) wait_for_inputs();

        constexpr int LINES = (LOCAL + (FUSED ? OWN : 0)) / 4;
#pragma unroll 1
        for (int i = threadIdx.x; i < n_rows * LINES; i += THREADS) {
            const int r = i / LINES, x = i % LINES * 4;
            const size_t row = start + r;
            const float* const from =
                x < LOCAL ? mixed + row * CHANNELS + channel_of(x) : gate + row * HEADS * VALUES + channel + x - LOCAL;
            copy_16(address(x < LOCAL ? shared.rows + r * LOCAL + x : shared.gates + r * OWN + x - LOCAL), from);
        }
        copy_commit();
        const int of_law = THREADS - 1 - threadIdx.x;  // a row: the last threads convolve the fewest channels
        const size_t at = (size_t)(start + min(of_law, n_rows - 1)) * HEADS + head;
        const float of_alpha = alpha[at], of_beta = beta[at];
        copy_wait<0>();
        __syncthreads();
        if (of_law < n_rows) {
            const float part_kept = expf(log_decay(of_alpha, rate, shift));
            shared.laws[4 * of_law] = part_kept, shared.laws[4 * of_law + 1] = strength(of_beta);
            if (part == 0) decay[(now + of_law) * HEADS + head] = part_kept;
        }
#pragma unroll 1
        for (int x = threadIdx.x; x < LOCAL; x += THREADS) {
            float* const remembered = x >= 2 * WIDTH || keeps_keys ? inputs + now * CHANNELS + channel_of(x) : nullptr;
            if (chain) {
                convolve_rows<true>(shared.taps + x, shared.rows + x, n_rows, tree, remembered);
            } else {
                convolve_rows<false>(shared.taps + x, shared.rows + x, n_rows, tree, remembered);
            }
        }
        __syncthreads();
        int arrived = 0;
        if (threadIdx.x == 0 && n_before) arrived = atomicAdd(readers + s * GROUPS + group, 1);
#pragma unroll 1
        for (int i = threadIdx.x / 32; i < n_rows; i += 2 * WARPS) {
            normalize(shared, i, n_rows, keeps_keys ? k + (now * GROUPS + group) * WIDTH : nullptr);
        }
        __syncthreads();
        const int value = threadIdx.x / LANES * ROWS + row_of(lane);
        float* const changes = u + now * HEADS * VALUES + channel + value;
        float* const reads = FUSED ? shared.reads + value : read_out + (size_t)start * HEADS * VALUES + channel + value;
        if (chain) {
            visit_chain(own, n_rows, shared, changes, reads, FUSED ? OWN : HEADS * VALUES, lane);
        } else {
            visit_tree(own, n_rows, tree, shared, changes, reads, FUSED ? OWN : HEADS * VALUES, committed, lane);
        }
        if (CLUSTERED && !waited) exchange.all_prepared();
        waited = true;
        if (FUSED) {
            __syncthreads();
            float* const sums = shared.sums + turn % 2 * SPLIT * room;
#pragma unroll 1
            for (int i = threadIdx.x / 32; i < n_rows; i += WARPS) {
                const int l = threadIdx.x % 32;
                float sum = 0.0f;
#pragma unroll
                for (int v = 0; v < OWN; v += 32) {
                    const float read = OWN % 32 == 0 || v + l < OWN ? shared.reads[i * OWN + v + l] : 0.0f;
                    sum = __fmaf_rn(read, read, sum);
                }
                sum = sum_of_warp(sum);
                if (CLUSTERED) {
                    if (l < SPLIT) exchange.tell(turn, sums + part * room + i, l, sum);
                } else if (l == 0) {
                    sums[i] = sum;
                }
            }
            if (CLUSTERED) {
                exchange.wait(turn++, 4 * SPLIT * n_rows);
            } else {
                __syncthreads();
            }
#pragma unroll 1
            for (int i = threadIdx.x; i < n_rows * OWN; i += THREADS) {
                float sum = sums[i / OWN];
#pragma unroll
                for (int p = 1; p < SPLIT; ++p) sum = __fadd_rn(sum, sums[p * room + i / OWN]);
                const float normed = shared.reads[i] * rsqrtf(sum * (1.0f / VALUES) + eps) * gain;
                const size_t to = (size_t)(start + i / OWN) * HEADS * VALUES + channel + i % OWN;
                out[to] = half_saturated(normed * silu(shared.gates[i]));
            }
        }
        if (n_before) {
            if (threadIdx.x == 0) {
                moves_tail = arrived == HEADS / GROUPS * SPLIT - 1;
                if (moves_tail) readers[s * GROUPS + group] = 0;
            }
            __syncthreads();
#pragma unroll 1
            for (int x = threadIdx.x + (moves_tail ? 0 : 2 * WIDTH); x < LOCAL; x += THREADS) {
#pragma unroll
                for (int t = 1; t < TAPS; ++t) text[(TAPS - 1 - t) * CHANNELS + channel_of(x)] = shared.rows[x - t * LOCAL];
            }
        }
        if (gridDim.z < n_sequences) __syncthreads();
    }
    if (!waited) {
        wait_for_inputs();
        if (CLUSTERED) exchange.all_prepared();
    }
}
