// Multiply of a decode pass of many tokens on Hopper: out = x @ W.T, with the bits of decode.cu for every token.
//
// A weight is read and unpacked once for all tokens. Each of WARPS consumer warps unpacks tiles of 16 rows to A fragments,
// and its warpgroup multiplies 64 rows with all tokens (wgmma). Sums are added in the order of decode.cu: the columns of a
// group in the tensor core, then groups, tiles and minima, then the K slices one after another.
//
// A group is the row tiles of a block (GATED: half of them of the gate, and the same of the up projection), a unit 256 columns
// of a group. Each block takes an equal share of the units in a row. A share may begin or end inside a K slice; then
// the block before passes its sums on. It does so first and the block after continues them last, so that none waits long.
// The sums of a slice are stored in `partials`. A warp that has all slices of a row tile adds them itself. The others wait at
// the end for the warps that have the rest of their row tiles; then each adds the slices in order for some of the tokens.
//
// First the consumer warps of all blocks bring the tokens into the order that the tensor cores need (arrange.cuh) and compute
// the factors of their norm. Of the last warpgroup, one warp copies stages of 64 columns of the tokens, two copy tiles, and one
// brings what the epilogue needs to shared memory: the factors, and a list of the slices that other blocks have a part of.
//
// Grid: at most one block a multiprocessor, since blocks wait for each other. Block 32 * (WARPS + 4), shared
// memory SMEM_BYTES.
// Macros: QUANTS, the formats, separated by commas; TOKENS, capacity, a multiple of 16 up to 128; MODE and NORM, see
// epilogue.cuh; SLICES of K; WARPS, consumer warps; X_STAGES, stages of the tokens, at least 5; W_STAGES, tiles in the ring of
// a warp; SMEM_BYTES; SUMS_IN_SMEM, 1 if warps that have all slices of a row tile keep their sums in shared memory.
// Bytes: the tiles once; the tokens once for each group, from the L2 cache; the sums of each slice are written and read once,
// in the L2 cache.
#define MAY_SPILL  // the sums of up to 128 tokens take most registers
#include "../../gpu/include/pdl.cuh"
#include "../../gpu/include/ptx.cuh"
#include "tokens.cuh"

// The value, in a register for good: the compiler does not compute the result of a shuffle again at each use.
__device__ __forceinline__ u32 in_register(u32 value) { return __shfl_sync(~0u, value, threadIdx.x % 32); }

constexpr int TOKEN_PRODUCER = WARPS, TILE_PRODUCER = WARPS + 1, EPILOGUE_PRODUCER = TILE_PRODUCER + TILE_PRODUCERS;
static_assert(EPILOGUE_PRODUCER + 1 == ALL_WARPS, "four producer warps are a warpgroup");
constexpr int ASIDE_BYTES = SUMS_IN_SMEM ? WARPS * NT * OWN_SLICES * 512 : 0;
static_assert(1024 + ASIDE_AT + ASIDE_BYTES <= SMEM_BYTES && ASIDE_AT % 16 == 0, "SMEM_BYTES must hold all stages and sums");

extern "C" __global__ void __launch_bounds__(32 * ALL_WARPS, 1)
decode_wide(const unsigned short* x, int n_tokens, int width, float scale, const float* gates, const float* gain,
            unsigned short* halves, float* squares, float eps, float* factors, float* kept,
            unsigned long long tiles_0, unsigned long long out_0, int rows_0, int stride_0, int type_0,
            unsigned long long tiles_1, unsigned long long out_1, int rows_1, int stride_1, int type_1,
            unsigned long long tiles_2, unsigned long long out_2, int rows_2, int stride_2, int type_2,
            unsigned long long tiles_3, unsigned long long out_3, int rows_3, int stride_3, int type_3,
            unsigned long long tokens_0, int bytes_0, int arranges_0, unsigned long long tokens_1, int bytes_1,
            int arranges_1, unsigned long long tokens_2, int bytes_2, int arranges_2, float* partials, int* counts,
            float* passed, int* there, int* arranged) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ u8 shared[];
    __shared__ __align__(8) u64 all_barriers[N_BARRIERS];
    __shared__ SharedSlices shared_slices;
    __shared__ float scales[NORM == INPUT_NORM ? TOKENS : 1];  // factors of the norm, for the epilogue
    launch_dependent_grids();

    const Job job = {width / UNIT_COLUMNS,
                     {{tiles_0, out_0, rows_0, stride_0, type_0},
                      {tiles_1, out_1, rows_1, stride_1, type_1},
                      {tiles_2, out_2, rows_2, stride_2, type_2},
                      {tiles_3, out_3, rows_3, stride_3, type_3}}};
    const int lane = in_register(threadIdx.x % 32), warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const u32 start = in_register(smem_address(shared)), address = (start + 1023) & ~1023u;
    Pipe pipe = {shared + (address - start), address, in_register(smem_address(all_barriers)), 0, 0, 0};
    if (warp == 0) {
        for (int i = lane; i < N_BARRIERS; i += 32) mbarrier_init(pipe.barriers + 8 * i, arrivals_at(i));
    }
    __syncthreads();  // the barriers are initialised

    const Tokens tokens[3] = {{(u8*)tokens_0, bytes_0, arranges_0},
                              {(u8*)tokens_1, bytes_1, arranges_1},
                              {(u8*)tokens_2, bytes_2, arranges_2}};
    const Arranged all = {arranged, arranged + 1};
    if (warp >= WARPS) {
        setmaxnreg_dec<WARPS == 8 ? 40 : 32>();
        if (warp >= TILE_PRODUCER && warp < EPILOGUE_PRODUCER) {
            if (lane == 0) produce_tiles(job, pipe, warp - TILE_PRODUCER);
        } else if (warp == TOKEN_PRODUCER && lane == 0) {
            wait_on_dependent_grids();
            all.wait();
            produce(job, tokens, pipe);
            all.reset();
        } else if (warp == EPILOGUE_PRODUCER) {
            if (lane == 0 && !DIRECT) shared_slices.find(job);
            if constexpr (NORM == INPUT_NORM) {
                wait_on_dependent_grids();
                if (lane == 0) all.wait();
                __syncwarp();
                for (int t = lane; t < n_tokens; t += 32) scales[t] = *(const volatile float*)(factors + t);
                if (lane == 0) all.reset();
            }
            __syncwarp();  // the list and the factors are stored
            if (EVERY_LANE_ARRIVES || lane == 0) mbarrier_arrive(pipe.barriers + 8 * EPILOGUE);
        }
        __syncwarp();
    } else {
        wait_on_dependent_grids();
        const Epilogue with_factors = {scale, gates, gain, halves, squares, factors, kept, nullptr};
        const int turn = warp * gridDim.x + blockIdx.x, step = WARPS * gridDim.x;
        arrange_all<QUANTS>(tokens, x, n_tokens, width, turn, step, lane);
        // The last warps have no tokens of narrow matrices to arrange.
        if constexpr (NORM == INPUT_NORM) compute_norm_scales(with_factors, width, eps, n_tokens, step - 1 - turn, step, lane);
        all.announce();
        if (threadIdx.x == 0) mbarrier_arrive(pipe.barriers + 8 * STARTED);
        setmaxnreg_inc<WARPS == 8 ? 232 : WARPS == 12 ? 160 : 112>();
        const Passed between = {passed, there};
        const Epilogue with_scales = {scale, gates, gain, halves, squares, scales, kept, nullptr};
        const Outputs outputs = {with_scales, n_tokens, partials, counts, warp, lane, (float*)(pipe.memory + ASIDE_AT)};
        Ring ring = {pipe.memory + RINGS_AT + warp * (W_STAGES * All::BYTES), pipe.barriers + 8 * warp * W_STAGES, 0, 0};
        Item item;
        Items items(job);
        while (items.next(job, item)) {
            float total[NT][4];
            if (item.continues) {
                between.take(total, warp, lane);
            } else {
                clear(total);
            }
            multiply_any<QUANTS>(item.type, item, pipe, ring, lane, total);
            mbarrier_wait(pipe.barriers + 8 * EPILOGUE, 0);
            if (item.goes_on) {
                between.give(total, warp, lane);
            } else {
                outputs.store(item, total);
            }
        }
        if constexpr (!DIRECT) outputs.add_slices(shared_slices);
    }
    __syncthreads();  // all copies were read before the block ends
#endif
}
