// The middle of a linear-attention layer, for pending rows: conv, SiLU, unit q and k, gated delta rule, gated norm.
//
//   S = decay * S;  u = strength * (v - S k);  S += outer(u, k);  o = S q;  out = half(o / rms(o) * weight * silu(gate))
//
// A block has OWN value rows of each of SHARE heads that read one key, of one sequence, in registers all along. First it applies
// the rows of the pass before that are text now, so the state is written at most once; then it visits its rows one after
// another, each from the state of its parent. So a row goes through the same operations on the same numbers in a chain, in a
// tree and alone. The SPLIT blocks of these heads are a cluster and share the sums of squares of the norm (FUSED), or leave what
// they read out to `gated_norm`, in place of the values in `mixed`. Of the channels of q and k, which several blocks convolve,
// the last block that read them moves the tail.
//
// Before it waits for the kernel ahead it reads the batch and the memories, and writes the state: nothing else in a pass
// touches them.
//
// Grid (SPLIT, HEADS / SHARE, sequences or fewer), block THREADS; shared: see `Shared`, for `room` rows and `places` states.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value; TAPS; SPLIT; SHARE, which divides
// HEADS / GROUPS; LANES, threads of a value row; FUSED. No bit depends on SHARE and FUSED.
// Bytes: 4 * HEADS * VALUES * WIDTH a sequence, twice if rows were kept.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES) || !defined(TAPS) || !defined(SPLIT) || \
    !defined(SHARE) || !defined(LANES) || !defined(FUSED)
#error "GROUPS, HEADS, WIDTH, VALUES, TAPS, SPLIT, SHARE, LANES and FUSED must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES, OWN = VALUES / SPLIT, PENDING = 64;
constexpr int THREADS = OWN * LANES;
#include "../formats/half.cuh"
#include "../launch.cuh"
#include "../conv/above.cuh"
#include "address.cuh"
#include "cluster.cuh"
#include "gated.cuh"
#include "gates.cuh"
#include "state.cuh"
#include "kept.cuh"
#include "tree.cuh"
#include "rows.cuh"

constexpr bool CLUSTERED = FUSED && SPLIT > 1;
static_assert(VALUES % SPLIT == 0 && SPLIT <= ADDED && OWN % 16 == 0 && OWN <= 32 && WIDTH <= 128, "registers hold 4 x 32 x 128 of states");
static_assert(THREADS >= MOST_ROWS && THREADS % 32 == 0, "a thread for each row of a tree");
static_assert(HEADS % (GROUPS * SHARE) == 0 && TAPS >= 2 && TAPS <= 8, "heads share keys; 2 to 8 taps");
#if __CUDA_ARCH__ < 900
static_assert(!CLUSTERED, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

// Bring the registers to the state that the parent of `row` left.
__device__ __forceinline__ void go_back(State& own, const Tree& tree, int row, const Shared& shared, const float* committed,
                                        int lane) {
    const int start = tree.start[row], value = threadIdx.x / LANES;
    u64 again = tree.parent[row] >= 0 ? tree.path[tree.parent[row]] : 0;
    if (start == COMMITTED) {
        own.load(committed, GROUPS * VALUES * WIDTH, lane);
    } else {
        own.load(shared.aside + (tree.place[start] * BLOCK_ROWS + value) * WIDTH, OWN * WIDTH, lane);
        again &= ~tree.path[start];
    }
#pragma unroll 1
    for (; again; again &= again - 1) {
        Row above;
        float key[COLUMNS];
        above.load(shared, lowest(again), lane);
        load_key(shared, lowest(again), lane, key);
        own.add(above.kept, above.value, key);
    }
}

// Where what a thread makes of its rows goes: its lane's head of `head_of`, if it `writes`.
struct Target {
    float *changes, *read_out;
    u32 reads;  // FUSED; else `read_out`
    bool writes;

    __device__ __forceinline__ void write(int at, float change, float read) const {
        store_if(writes, changes + (size_t)at * HEADS * VALUES, change);
        if constexpr (FUSED) {
            store_if(writes, reads + at * BLOCK_ROWS * 4, read);
        } else {
            store_if(writes, read_out + (size_t)at * CHANNELS, read);
        }
    }
};

// Visit a row; the state goes on to its children unless it is a leaf. Of a tree, the change takes the place of the value.
template <bool LEAF, bool TREE>
__device__ __forceinline__ void visit(State& own, const float (&key)[COLUMNS], const Shared& shared, int at, bool leaf,
                                      const Target& target, int lane) {
    float of_key[SHARE], of_query[SHARE], amount[SHARE];
    Row row;
    row.load(shared, at, lane);
    own.read(key, of_key);
#pragma unroll
    for (int h = 0; h < SHARE; ++h) of_key[h] = sum_over<LANES>(of_key[h]);
    own.read(row.query, of_query);
#pragma unroll
    for (int h = 0; h < SHARE; ++h) {
        amount[h] = __fmul_rn(row.strength[h], __fmaf_rn(-row.kept[h], of_key[h], row.value[h]));
    }
    const float sum = share_of_sums(of_query, lane);
    if (!LEAF && !leaf) own.add(row.kept, amount, key);
    const int head = head_of(lane);
    const float mine = pick(amount, head), kept = pick(row.kept, head);
    target.write(at, mine, __fmaf_rn(mine, row.product, __fmul_rn(kept, sum)));
    if (TREE) {
        __syncwarp();
        if (target.writes) shared.value_of(at, head, threadIdx.x / LANES) = mine;
    }
}

__device__ __forceinline__ void visit_chain(State& own, int n, const Shared& shared, const Target& target, int lane) {
    float a[COLUMNS], b[COLUMNS];  // keys, fetched ahead
    load_key(shared, 0, lane, a);
    int i = 0;
#pragma unroll 1
    for (; i + 2 < n; i += 2) {
        load_key(shared, i + 1, lane, b);
        visit<false, false>(own, a, shared, i, false, target, lane);
        load_key(shared, i + 2, lane, a);
        visit<false, false>(own, b, shared, i + 1, false, target, lane);
    }
    if (i + 1 < n) {
        load_key(shared, i + 1, lane, b);
        visit<false, false>(own, a, shared, i, false, target, lane);
        visit<true, false>(own, b, shared, i + 1, true, target, lane);
    } else {
        visit<true, false>(own, a, shared, i, true, target, lane);
    }
}

__device__ __forceinline__ void visit_tree(State& own, int n, const Tree& tree, const Shared& shared, const Target& target,
                                           const float* committed, int lane) {
    float a[COLUMNS], b[COLUMNS];  // keys, fetched ahead
    load_key(shared, tree.order[0], lane, a);
    const auto visit_next = [&](int i, const float (&key)[COLUMNS], float (&next)[COLUMNS]) {
        const int at = tree.order[i];
        if (i + 1 < n) load_key(shared, tree.order[i + 1], lane, next);
        if (tree.start[at] != GO_ON) {
            __syncwarp();
            go_back(own, tree, at, shared, committed, lane);
        }
        visit<false, true>(own, key, shared, at, tree.leaves >> at & 1, target, lane);
        if (tree.aside >> at & 1) {
            float* const place = shared.aside + (tree.place[at] * BLOCK_ROWS + threadIdx.x / LANES) * WIDTH;
            own.store(place, OWN * WIDTH, lane);
        }
    };
    int i = 0;
#pragma unroll 1
    for (; i + 1 < n; i += 2) visit_next(i, a, b), visit_next(i + 1, b, a);
    if (i < n) visit_next(i, a, b);
}

extern "C" __global__ void __launch_bounds__(THREADS, LANES == 16 ? 2 : 256 / THREADS) __cluster_dims__(CLUSTERED ? SPLIT : 1, 1, 1) step(
    float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
    const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first, const int* parent,
    const int* slot, const int* kept, const int* n_kept, const int* side, float* tail, float* inputs, float* state, float* k,
    float* u, float* decay, int slots, int* readers, unsigned short* out, int room, int places) {
    dependents_may_launch();
    extern __shared__ float4 dynamic[];
    __shared__ Tree tree;
    __shared__ Exchange exchange;
    __shared__ bool moves_tail;
    const Shared shared((float*)dynamic, room, places);
    const int part = blockIdx.x, group = blockIdx.y % GROUPS, lane = threadIdx.x % LANES;
    const int head = blockIdx.y / GROUPS * SHARE * GROUPS + group;  // the first; GROUPS further on the next one
    const int channel = head * VALUES + part * OWN;                 // of all heads' values, the block's first
    const bool keeps_keys = blockIdx.y < GROUPS && part == 0;
    const auto value_of = [&](int y) { return channel + y / OWN * GROUPS * VALUES + y % OWN; };
    const auto channel_of = [&](int x) {
        return x < 2 * WIDTH ? (x / WIDTH * GROUPS + group) * WIDTH + x % WIDTH : 2 * GROUPS * WIDTH + value_of(x - 2 * WIDTH);
    };
    const float gain = ssm_norm[part * OWN + threadIdx.x % OWN];
    const int n_sequences = counts[1];
    if (CLUSTERED) exchange.prepare();
    bool waited = false;
    int turn = 0;
    int begin = first[blockIdx.z], end = first[blockIdx.z + 1];  // read before it is known whether there is such a sequence
    int of_slot = slot[blockIdx.z], of_kept = n_kept[blockIdx.z], of_side = side[blockIdx.z];
#pragma unroll 1
    for (int s = blockIdx.z; s < n_sequences;) {
        const int start = begin, n_rows = uniform(end - begin), here = of_slot, n_before = of_kept;
        const size_t old = (size_t)(of_side * slots + here) * PENDING, now = (size_t)((1 - of_side) * slots + here) * PENDING;
        float* const committed = state + ((size_t)here * HEADS * VALUES + channel + threadIdx.x / LANES) * WIDTH;
        State own;
        own.load(committed, GROUPS * VALUES * WIDTH, lane);
        float* const text = tail + (size_t)here * (TAPS - 1) * CHANNELS;
        const Above above{text, inputs + old * CHANNELS, kept + s * PENDING, n_before};
#pragma unroll
        for (int x = threadIdx.x * 4; x < LOCAL; x += THREADS * 4) {
            const int channel_here = channel_of(x);
            const u32 to = address(shared.taps + x);
#pragma unroll
            for (int t = 0; t < TAPS; ++t) copy_16(to + t * LOCAL * 4, taps + t * CHANNELS + channel_here);
#pragma unroll
            for (int t = 1; t < TAPS; ++t) copy_16(to + (2 * TAPS - 1 - t) * LOCAL * 4, above.row(t) + channel_here);
        }
        const Kept before{above.kept, n_before, k + (old * GROUPS + group) * WIDTH, u + old * HEADS * VALUES + channel,
                          decay + old * HEADS + head, shared.rows, shared.laws, LOCAL, room};
        before.fetch(0);
        int chain = 1;
        if (n_rows > 1) {
            const bool follows = threadIdx.x >= n_rows || parent[start + threadIdx.x] == (int)threadIdx.x - 1;
            chain = uniform(__syncthreads_and(follows));
            if (!chain) plan(tree, parent + start, n_rows, places);
        }
        if (n_before) {
            before.apply(own, lane);
            own.store(committed, GROUPS * VALUES * WIDTH, lane);
        }
        if (!waited) wait_for_inputs();

#pragma unroll
        for (int x = threadIdx.x * 4; x < LOCAL + (FUSED ? BLOCK_ROWS : 0); x += THREADS * 4) {
            const bool of_gate = x >= LOCAL;
            const float* const from = of_gate ? gate + (size_t)start * HEADS * VALUES + value_of(x - LOCAL)
                                              : mixed + (size_t)start * CHANNELS + channel_of(x);
            const u32 to = address(of_gate ? shared.gates + x - LOCAL : shared.rows + x);
            const int stride = of_gate ? HEADS * VALUES : CHANNELS, step = 4 * (of_gate ? BLOCK_ROWS : LOCAL);
#pragma unroll 4
            for (int r = 0; r < n_rows; ++r) copy_16(to + r * step, from + (size_t)r * stride);
        }
        copy_commit();
        // a row of a head: the last threads convolve the fewest channels
#pragma unroll 1
        for (int i = THREADS - 1 - threadIdx.x; i < n_rows * SHARE; i += THREADS) {
            const int of = head + i % SHARE * GROUPS;
            const size_t at = (size_t)(start + i / SHARE) * HEADS + of;
            const float part_kept = expf(log_decay(alpha[at], ssm_a[of], ssm_dt[of]));
            shared.laws[i / SHARE * LAW + 2 * (i % SHARE)] = part_kept;
            shared.laws[i / SHARE * LAW + 2 * (i % SHARE) + 1] = strength(beta[at]);
            if (part == 0) decay[(now + i / SHARE) * HEADS + of] = part_kept;
        }
        copy_wait<0>();
        __syncthreads();
        float* const remembered = inputs + now * CHANNELS;
        const auto remembers = [&](int x) { return x >= 2 * WIDTH || keeps_keys ? remembered + channel_of(x) : nullptr; };
        if (LOCAL >= THREADS || threadIdx.x < LOCAL) {
            const Channels channels(shared, remembers);
            if (chain) {
                convolve_rows<true>(channels, n_rows, tree);
            } else {
                convolve_rows<false>(channels, n_rows, tree);
            }
        }
        __syncthreads();
        int arrived = 0;
        if (threadIdx.x == 0 && n_before) arrived = atomicAdd(readers + s * GROUPS + group, 1);
        float* const keys = keeps_keys ? k + (now * GROUPS + group) * WIDTH : nullptr;
        if (n_rows <= WARPS) {
            if (threadIdx.x / 32 < n_rows) normalize<1>(shared, threadIdx.x / 32, n_rows, keys);
        } else {
#pragma unroll 1
            for (int i = threadIdx.x / 32; i < n_rows; i += 4 * WARPS) normalize<4>(shared, i, n_rows, keys);
        }
        __syncthreads();
        const int own_head = head_of(lane), value = threadIdx.x / LANES, of_value = channel + own_head * GROUPS * VALUES + value;
        const Target target{u + now * HEADS * VALUES + of_value, mixed + (size_t)start * CHANNELS + 2 * GROUPS * WIDTH + of_value,
                            address(shared.reads + own_head * OWN + value),
                            lane % (LANES / PADDED) == 0 && own_head < SHARE};
        if (chain) {
            visit_chain(own, n_rows, shared, target, lane);
        } else {
            visit_tree(own, n_rows, tree, shared, target, committed, lane);
        }
        if (CLUSTERED && !waited) exchange.all_prepared();
        waited = true;
        if (FUSED) {
            __syncthreads();
            float* const sums = shared.sums + turn % 2 * SPLIT * SHARE * room;
            const int one = threadIdx.x % ADDED;
            const u32 together = ((1u << ADDED) - 1) << threadIdx.x % 32 / ADDED * ADDED;
#pragma unroll 2
            for (int i = threadIdx.x / ADDED; i < n_rows * SHARE; i += THREADS / ADDED) {
                float sum = 0.0f;
#pragma unroll
                for (int v = 0; v < OWN; v += ADDED) {
                    const float read = shared.reads[i * OWN + v + one];
                    sum = __fmaf_rn(read, read, sum);
                }
                sum = sum_over<ADDED>(sum, together);
                if (CLUSTERED) {
                    if (one < SPLIT) exchange.tell(turn, sums + part * SHARE * room + i, one, sum);
                } else if (one == 0) {
                    sums[i] = sum;
                }
            }
            if (CLUSTERED) {
                exchange.wait(turn++, 4 * SPLIT * SHARE * n_rows);
            } else {
                __syncthreads();
            }
#pragma unroll 1
            for (int i = threadIdx.x; i < n_rows * SHARE; i += THREADS) {
                float sum = sums[i];
#pragma unroll
                for (int p = 1; p < SPLIT; ++p) sum = __fadd_rn(sum, sums[p * SHARE * room + i]);
                sums[i] = scale_of(sum, eps);
            }
            __syncthreads();
#pragma unroll 4
            for (int i = threadIdx.x; i < n_rows * BLOCK_ROWS; i += THREADS) {
                out[(size_t)(start + i / BLOCK_ROWS) * HEADS * VALUES + value_of(i % BLOCK_ROWS)] =
                    gated(shared.reads[i], sums[i / OWN], gain, shared.gates[i]);
            }
        }
        if (n_before) {
            if (threadIdx.x == 0) {
                moves_tail = arrived == HEADS / GROUPS / SHARE * SPLIT - 1;
                if (moves_tail) readers[s * GROUPS + group] = 0;
            }
            __syncthreads();
#pragma unroll 1
            for (int x = threadIdx.x + (moves_tail ? 0 : 2 * WIDTH); x < LOCAL; x += THREADS) {
#pragma unroll
                for (int t = 1; t < TAPS; ++t) text[(TAPS - 1 - t) * CHANNELS + channel_of(x)] = shared.rows[x - t * LOCAL];
            }
        }
        s += gridDim.z;
        if (s < n_sequences) {
            begin = first[s], end = first[s + 1], of_slot = slot[s], of_kept = n_kept[s], of_side = side[s];
            __syncthreads();
        }
    }
    if (!waited) {
        wait_for_inputs();
        if (CLUSTERED) exchange.all_prepared();
    }
}
