// The middle of a linear-attention layer, for pending rows: conv, SiLU, unit q and k, gated delta rule, gated norm.
//
//   S = decay * S;  u = strength * (v - S k);  S += outer(u, k);  o = S q;  out = half(o / rms(o) * weight * silu_fast(gate))
//
// A block has OWN value rows of one head of one sequence, in the registers of its visitors all along. First these apply the
// rows of the pass before that are text now, so the state is written at most once; then they visit the rows one after
// another, each from the state of its parent. So a row goes through the same operations on the same numbers in a chain, in a
// tree and alone. The way from row to row is what takes time, so nothing else is on it: other warps, the makers, fetch and
// convolve rows and make unit keys of them while earlier ones are visited, and norm what has been read while later ones are.
//
// The SPLIT blocks of a head are a cluster and share the sums of squares of the norm (FUSED), or leave the norm to another
// kernel. Of the channels of q and k, which several heads convolve, the last block that read them moves the tail.
//
// Before it waits for the kernel ahead it reads the batch and the memories, and writes the state: nothing else in a pass
// touches them.
//
// Grid (SPLIT, HEADS, sequences or fewer), block THREADS; shared: see `Shared`, for `room` rows and `places` states.
// Macros: GROUPS and HEADS, key and value heads; WIDTH and VALUES, sizes of a key and a value; TAPS; SPLIT; FUSED; ROWS,
// value rows of a thread, 2 or 4; STAGED, whether there is room for the rows' inputs (no bit depends on these two).
// Bytes: 4 * HEADS * VALUES * WIDTH a sequence, twice if rows were kept.
#if !defined(GROUPS) || !defined(HEADS) || !defined(WIDTH) || !defined(VALUES) || !defined(TAPS) || !defined(SPLIT) || \
    !defined(FUSED) || !defined(ROWS) || !defined(STAGED)
#error "GROUPS, HEADS, WIDTH, VALUES, TAPS, SPLIT, FUSED, ROWS and STAGED must be defined"
#endif
constexpr int CHANNELS = 2 * GROUPS * WIDTH + HEADS * VALUES, OWN = VALUES / SPLIT, PENDING = 64, MOST_ROWS = PENDING;
constexpr bool CLUSTERED = FUSED && SPLIT > 1;
constexpr int LANES = 8, VISITORS = OWN / ROWS * LANES, APPLIERS = VISITORS;
#include "../gpu/include/activation.cuh"
#include "../gpu/include/cp_async.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/mbarrier.cuh"
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"
#include "../conv/above.cuh"
#include "gates.cuh"
#include "state.cuh"
#include "kept.cuh"
#include "layout.cuh"
#include "groups.cuh"
#include "cluster.cuh"
#include "tree.cuh"
#include "make.cuh"
#include "visit.cuh"
#include "pass.cuh"
#include "fetch.cuh"
#include "makers.cuh"
#include "norm.cuh"

static_assert(VALUES % SPLIT == 0 && OWN % 16 == 0 && OWN <= 64 && WIDTH <= 128, "registers hold 64 x 128 of a state");
static_assert(32 * MAKERS >= MOST_ROWS && GROUP % MAKERS == 0, "a thread for each row, and all makers for each group");
static_assert(HEADS % GROUPS == 0 && TAPS >= 2 && TAPS <= 8, "heads share keys; 2 to 8 taps");
#if __CUDA_ARCH__ < 900
static_assert(!CLUSTERED, "this GPU has no clusters");
#undef __cluster_dims__
#define __cluster_dims__(...)
#endif

extern "C" __global__ void __launch_bounds__(THREADS, 256 / VISITORS) __cluster_dims__(CLUSTERED ? SPLIT : 1, 1, 1) step(
    const float* mixed, const float* gate, const float* alpha, const float* beta, const float* taps, const float* ssm_a,
    const float* ssm_dt, const float* ssm_norm, float eps, const int* counts, const int* first, const int* parent,
    const int* slot, const int* kept, const int* n_kept, const int* side, float* tail, float* inputs, float* state, float* k,
    float* u, float* decay, int slots, int* readers, unsigned short* out, float* read_out, int room, int places) {
    launch_dependent_grids();
    extern __shared__ float4 dynamic[];
    __shared__ Tree tree;
    __shared__ Exchange exchange;
    __shared__ Groups groups;
    __shared__ bool moves_tail;
    const Shared shared((float*)dynamic, room, places);
    const Arrays arrays{mixed, gate, taps, ssm_norm, eps, tail, inputs, k, u, decay, readers, out, read_out};
    const Block block{(int)blockIdx.x, (int)blockIdx.y};
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);  // so the compiler sees that all lanes have the same
    const Maker maker{warp - VISITORS / 32, (int)threadIdx.x - VISITORS, (int)threadIdx.x % 32};

    // All that tells of a sequence is asked for at once, the first time before it is known whether there is one.
    const int n_sequences = counts[1];
    Described wgmma_descriptor;
    wgmma_descriptor.load(first, slot, n_kept, side, kept, blockIdx.z);
    // The first sequence begins with row 0; behind `parent` a batch has more than MOST_ROWS numbers.
    int above = blockIdx.z == 0 && maker.row >= 0 && maker.row < MOST_ROWS ? parent[maker.row] : -1;
    groups.prepare();
    if (CLUSTERED) exchange.prepare();
    __syncthreads();
    int turn = 0;
    u32 used = 0;  // of each group, whether its barriers are in an odd phase
#pragma unroll 1
    for (int s = blockIdx.z; s < n_sequences; s += gridDim.z) {
        const bool is_first = s == (int)blockIdx.z;
        const Pass pass(wgmma_descriptor, s, slots, used);
        if (maker.number < 0) {
            const int lane = threadIdx.x % LANES;
            const size_t value = pass.slot * HEADS * VALUES + block.channel + threadIdx.x / LANES * ROWS;
            float* const committed = state + value * WIDTH;
            State own;
            own.load(committed, lane);
            if (pass.n_before) {
                const Kept before{pass.ids, pass.n_before, k + (pass.old * GROUPS + block.group) * WIDTH,
                                  u + pass.old * HEADS * VALUES + block.channel, decay + pass.old * HEADS + block.head,
                                  shared.kept, shared.factors};
                before.fetch(0);
                before.apply(own, lane);
                own.store(committed, lane);
            }
            if (is_first) wait_on_dependent_grids();
            visit_all(own, pass.n_rows, tree, shared, committed, groups, used, lane);
            if (CLUSTERED && is_first) exchange.all_prepared();
        } else {
            const float rate = ssm_a[block.head], shift = ssm_dt[block.head];
            fetch_taps(arrays, shared, block, pass, maker);
            if (is_first) wait_on_dependent_grids();
            const size_t of_laws = (size_t)(pass.start + min(maker.row, pass.n_rows - 1)) * HEADS + block.head;
            const float of_alpha = alpha[of_laws], of_beta = beta[of_laws];
            fetch_rows(arrays, shared, block, pass, maker, groups);
            bool chain = true;
            if (pass.n_rows > 1) {
                if (s) above = maker.row < pass.n_rows ? parent[pass.start + maker.row] : -1;
                chain = named_barrier_all<32 * MAKERS>(2, maker.row >= pass.n_rows || above == maker.row - 1);
                if (!chain) plan(tree, maker.row, above, pass.n_rows, places);
            }
            if (maker.row < pass.n_rows) {
                const float part_kept = expf(log_decay(of_alpha, rate, shift));
                keep_law(arrays, shared, block, pass, maker.row, tree, chain, part_kept, strength(of_beta));
            }
            cp_async_wait_group<0>();
            named_barrier_sync<32 * MAKERS>(2);
            int arrived = 0;  // blocks that had read these channels of the tail before this one
            if (pass.n_before && maker.row == 0) arrived = atomicAdd(readers + s * GROUPS + block.group, 1);
            make_rows(arrays, shared, block, pass, maker, tree, chain, groups);
            if (pass.n_before) move_tail(arrays, shared, block, pass, maker, arrived, moves_tail);
            if (CLUSTERED && is_first) exchange.all_prepared();
            norm_rows(arrays, shared, block, pass, maker, tree, chain, groups, exchange, turn);
        }
        used ^= (2u << (pass.n_groups - 1)) - 1;
        if (s + gridDim.z < n_sequences) wgmma_descriptor.load(first, slot, n_kept, side, kept, s + gridDim.z), __syncthreads();
    }
    if ((int)blockIdx.z >= n_sequences) {
        wait_on_dependent_grids();
        if (CLUSTERED) exchange.all_prepared();
    }
}
