// Gate and up projections of few rows, with the formula of gate_up.cu, fused with top-k routing. A block computes one unit
// of one pair.
//
// Each block chooses the expert of its pair itself from the router's logits, as soon as they are published (early_read.cuh). The
// first block of a row's last routed slot knows all experts and publishes the choice.
// Each block also prefetches a part of its expert's down projection into the L2 cache, once it has its own weights.
// Grid (UNITS, pairs), block 32 * SPANS, shared memory SPANS * (PIECE + SPAN_BYTES + 1024). Roles: each warp copies and
// multiplies its span of K; warp 0 also routes and writes the result.
// Macros: those of gate_up_unit.cuh; BLOCKS_PER_SM, blocks that must fit a multiprocessor. Bytes: the tiles of an expert
// once for every pair, repeats from the L2 cache.
#include "../gpu/include/pdl.cuh"
#include "gate_up_unit.cuh"
#include "topk.cuh"

#ifndef BLOCKS_PER_SM
#error "BLOCKS_PER_SM must be defined"
#endif

constexpr int WARP_BYTES = PIECE + SPAN_BYTES;

// Prefetch this block's part of a matrix into the L2 cache. The UNITS blocks of a pair prefetch the whole matrix together.
__device__ __forceinline__ void prefetch_part(const u8* matrix, size_t n_bytes) {
    const size_t begin = n_bytes * blockIdx.x / UNITS / 128 * 128, end = n_bytes * (blockIdx.x + 1) / UNITS;
    for (size_t i = begin + 128 * threadIdx.x; i < end; i += 128 * THREADS) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(matrix + i));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
gate_up_small(const unsigned char* x, const float* logits, const int* counts, const unsigned char* gate,
              const unsigned char* up, const unsigned char* shared_gate, const unsigned char* shared_up,
              unsigned char* inner, int* experts, float* factors, const unsigned char* down,
              const unsigned char* shared_down, size_t down_bytes, size_t shared_down_bytes) {
    extern __shared__ __align__(128) u8 shared[];
    __shared__ __align__(8) u64 barriers[SPANS];
    __shared__ int found;
    float4(*sums)[2][32] = (float4(*)[2][32])shared;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, unit = blockIdx.x, pair = blockIdx.y;
    const int row = pair / SLOTS, slot = pair % SLOTS;
    const bool is_shared = slot == N_USED;
    u8 *own = shared + SPANS * 1024 + warp * WARP_BYTES, *token = own + PIECE;
    const u32 piece = smem_address(own), barrier = smem_address(barriers + warp);
    if (lane == 0) mbarrier_init_for_copies(barrier, 2);
    __syncwarp();  // the barrier of the warp is initialised
    if (is_shared)
        fetch_both<SHARED_GATE, SHARED_UP>(piece, shared_gate, shared_up, 0, SHARED_FFN_DIM / 16, unit, warp, barrier, lane);
    const bool exists = row < counts[0];  // no kernel of a pass writes the counts
    const float* of_row = logits + row * (EXPERTS + N_SHARED);
    int chosen = -1;
    float logit = 0.0f, max_logit = 0.0f;
    if (exists && !is_shared) {
        if (warp == 0) {
            u32 keys[PER_LANE];
            poll<POLL_PAUSE>([&] { return load_keys(of_row, lane, keys); });
            choose_first(keys, lane, slot, chosen, logit, max_logit);
            if (lane == slot) found = chosen;
        }
        __syncthreads();  // `found` is stored
        fetch_both<GATE, UP>(piece, gate, up, found, FFN_DIM / 16, unit, warp, barrier, lane);
    }
    wait_on_dependent_grids();
    launch_dependent_grids();  // only now: the next launch polls what the router cleared
    const u8* from = x + ((size_t)row * SPANS + warp) * SPAN_BYTES;
    for (int c = 16 * lane; c < SPAN_BYTES; c += 512) cp_async_16(smem_address(token + c), from + c);
    cp_async_commit_group();
    if (exists && warp == 0 && unit == 0 && slot == N_USED - 1) {
        const float share = share_of(logit, max_logit, lane);
        write_choice(chosen, share, of_row + EXPERTS, lane, experts + row * N_USED, factors + row * SLOTS);
    }
    cp_async_wait_group<0>();
    __syncwarp();  // the token is visible to the warp
    if (is_shared || exists) mbarrier_wait(barrier, 0);
    if (!exists) return;
    // only now: an expert that is chosen late would else wait for the prefetches of the others
    prefetch_part(is_shared ? shared_down : down + found * down_bytes, is_shared ? shared_down_bytes : down_bytes);
    float totals[2][1][4];
    clear(totals);
    if (SHARED_ALIKE || !is_shared) {
        multiply_both<GATE, UP, 1>(own, token, 0, warp, lane, totals);
    } else {
        multiply_both<SHARED_GATE, SHARED_UP, 1>(own, token, 0, warp, lane, totals);
    }
    store_sums(sums, warp, lane, totals[0][0], totals[1][0]);
    __syncthreads();  // the sums of all warps are stored
    if (warp == 0)
        write_unit(sums, unit, (is_shared ? SHARED_FFN_DIM : FFN_DIM) / 16, lane == 0 ? pair : -1, 1, lane, inner);
}
