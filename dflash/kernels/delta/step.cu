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
// Some warps have no value rows: with them the channels are convolved in a round less.
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
constexpr int LANES = 8, VISITORS = OWN / ROWS * LANES;
#include "../formats/half.cuh"
#include "../launch.cuh"
#include "../conv/above.cuh"
#include "address.cuh"
#include "cluster.cuh"
#include "gates.cuh"
#include "layout.cuh"
#include "state.cuh"
#include "kept.cuh"
#include "tree.cuh"
#include "convolve.cuh"
#include "visit.cuh"

constexpr bool CLUSTERED = FUSED && SPLIT > 1;
constexpr int WARPS = THREADS / 32;
static_assert(VALUES % SPLIT == 0 && OWN % 16 == 0 && OWN <= 64 && WIDTH <= 128, "registers hold 64 x 128 of a state");
static_assert(THREADS >= MOST_ROWS && THREADS % 32 == 0, "a thread for each row of a tree");
static_assert(HEADS % GROUPS == 0 && TAPS >= 2 && TAPS <= 8, "heads share keys; 2 to 8 taps");
#if __CUDA_ARCH__ < 900
static_assert(!CLUSTERED, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int i = 16; i; i /= 2) x = __fadd_rn(x, __shfl_xor_sync(~0u, x, i));
    return x;
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

extern "C" __global__ void __launch_bounds__(THREADS, 256 / VISITORS) __cluster_dims__(CLUSTERED ? SPLIT : 1, 1, 1) step(
    const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
    const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first, const int* parent,
    const int* slot, const int* kept, const int* n_kept, const int* side, float* tail, float* inputs, float* state, float* k,
    float* u, float* decay, int slots, int* readers, unsigned short* out, float* read_out, int room, int places) {
    dependents_may_launch();
    extern __shared__ float4 dynamic[];
    __shared__ Tree tree;
    __shared__ Exchange exchange;
    __shared__ bool moves_tail;
    __shared__ float2 gains[OWN / 2];
    const Shared shared((float*)dynamic, room, places);
    const int part = blockIdx.x, head = blockIdx.y, group = head % GROUPS, lane = threadIdx.x % LANES;
    const int channel = head * VALUES + part * OWN;  // of all heads' values, the block's first
    const bool keeps_keys = head < GROUPS && part == 0;
    const auto channel_of = [&](int x) {
        return x < 2 * WIDTH ? (x / WIDTH * GROUPS + group) * WIDTH + x % WIDTH : 2 * (GROUPS - 1) * WIDTH + channel + x;
    };
    const bool visits = threadIdx.x < VISITORS;
    if (FUSED && threadIdx.x < OWN / 2) gains[threadIdx.x] = *(const float2*)(ssm_norm + part * OWN + 2 * threadIdx.x);
    const float rate = ssm_a[head], shift = ssm_dt[head];
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
        if (visits) own.load(committed, lane);
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
        int arrived = 0;  // blocks that had read these channels of the tail before this one
        if (n_before) {
            before.apply(own, visits, lane);
            if (visits) own.store(committed, lane);
            if (threadIdx.x == 0) arrived = atomicAdd(readers + s * GROUPS + group, 1);
        }
        if (!waited) wait_for_inputs();

        const float* const of_group = mixed + (size_t)start * CHANNELS + group * WIDTH;
#pragma unroll 1
        for (int r = threadIdx.x / 32; r < n_rows; r += WARPS) {
            const int x = threadIdx.x % 32 * 4;
            float* const line = shared.rows + r * LOCAL;
            if (x < WIDTH) {
                copy_16(address(line + x), of_group + r * CHANNELS + x);
                copy_16(address(line + WIDTH + x), of_group + r * CHANNELS + GROUPS * WIDTH + x);
            }
            const size_t row = start + r;
            if (x < OWN) {
                copy_16(address(line + 2 * WIDTH + x), mixed + row * CHANNELS + 2 * GROUPS * WIDTH + channel + x);
            } else if (FUSED && x < 2 * OWN) {
                copy_16(address(shared.gates + r * OWN + x - OWN), gate + row * HEADS * VALUES + channel + x - OWN);
            }
        }
        copy_commit();
        // The last threads make what rows keep, and those of other warps, if there are enough, the strengths.
        const int of_law = THREADS - 1 - threadIdx.x;
        const int of_strength = THREADS < 2 * MOST_ROWS ? of_law : of_law - (n_rows + 31) / 32 * 32;
        const bool makes_strength = of_strength >= 0 && of_strength < n_rows;
        const float of_alpha = alpha[(size_t)(start + min(of_law, n_rows - 1)) * HEADS + head];
        const float of_beta = beta[(size_t)(start + (makes_strength ? of_strength : 0)) * HEADS + head];
        copy_wait<0>();
        __syncthreads();
        if (of_law < n_rows) {
            const float part_kept = expf(log_decay(of_alpha, rate, shift));
            shared.laws[4 * of_law] = part_kept;
            if (part == 0) decay[(now + of_law) * HEADS + head] = part_kept;
        }
        if (makes_strength) shared.laws[4 * of_strength + 1] = strength(of_beta);
        const auto place_of = [&](int x) {
            return x >= 2 * WIDTH || keeps_keys ? inputs + now * CHANNELS + channel_of(x) : nullptr;
        };
        if (n_rows == 1) {
            convolve_row(shared, place_of);
        } else {
#pragma unroll 1
            for (int x = threadIdx.x; x < LOCAL; x += THREADS) {
                if (chain) {
                    convolve_rows<true>(shared.taps + x, shared.rows + x, n_rows, tree, place_of(x));
                } else {
                    convolve_rows<false>(shared.taps + x, shared.rows + x, n_rows, tree, place_of(x));
                }
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int i = threadIdx.x / 32; i < n_rows; i += 2 * WARPS) {
            normalize(shared, i, n_rows, keeps_keys ? k + (now * GROUPS + group) * WIDTH : nullptr);
        }
        __syncthreads();
        const int value = threadIdx.x / LANES * ROWS + row_of(lane);
        float* const changes = u + now * HEADS * VALUES + channel + value;
        float* const reads = FUSED ? shared.reads + value : read_out + (size_t)start * HEADS * VALUES + channel + value;
        if (visits) {
            const int stride = FUSED ? OWN : HEADS * VALUES;
            if (chain) {
                visit_chain(own, n_rows, shared, changes, reads, stride, lane);
            } else {
                visit_tree(own, n_rows, tree, shared, changes, reads, stride, committed, lane);
            }
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
            for (int i = 2 * threadIdx.x; i < n_rows * OWN; i += 2 * THREADS) {
                float sum = sums[i / OWN];
#pragma unroll
                for (int p = 1; p < SPLIT; ++p) sum = __fadd_rn(sum, sums[p * room + i / OWN]);
                const float2 gain = gains[i % OWN / 2];
                const float factor = rsqrtf(sum * (1.0f / VALUES) + eps);
                const float2 read = *(const float2*)(shared.reads + i), z = *(const float2*)(shared.gates + i);
                const size_t to = (size_t)(start + i / OWN) * HEADS * VALUES + channel + i % OWN;
                const u32 low = half_saturated(read.x * factor * gain.x * silu(z.x));
                *(u32*)(out + to) = low | (u32)half_saturated(read.y * factor * gain.y * silu(z.y)) << 16;
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
