// A chain of OPS ops, each with PER_OP stages of weights a block; an op needs the whole result of the op before it, WIDTH
// halves, of which each block makes a share. A producer warp copies weights to a ring in shared memory; it never waits for
// results, only for free stages.
//
// FORM says how results get from op to op: EDGE, by the end of a launch (one launch an op, programmatic dependent launch);
// COUNTER, a counter in memory; DATA, readiness in the results themselves: they are NaN halves until written, and the launch
// after next reuses the array, so that the next one clears it; AHEAD, readiness in the data between launches, which wait for the
// end of the launch before only when they have multiplied; NONE, not at all.
// With BESIDE, another group of warps exchanges results while the first one only takes weights; the times of the first and the
// last exchange are stored.
//
// Grid BLOCKS, all at once on the GPU. Block 288, with BESIDE 544. Macros: FORM, WIDTH, a multiple of 8 * MAKERS; PARTS, of
// which each block reads one part of the results; OPS, PER_OP, STAGES, BESIDE. Shared memory STAGES * STAGE_BYTES + 2 * WIDTH
// / PARTS. Every wait ends with an error after two seconds.
#include "../dflash/kernels/gpu/include/pdl.cuh"
#include "../dflash/kernels/gpu/include/ptx.cuh"
#include "../dflash/kernels/gpu/include/published.cuh"
#include "../dflash/kernels/gpu/include/tma.cuh"

#define EDGE 0
#define COUNTER 1
#define DATA 2
#define NONE 3
#define AHEAD 4

constexpr bool LAUNCHES = FORM == EDGE || FORM == AHEAD, POLLS = FORM == DATA || FORM == AHEAD;
constexpr int BLOCKS = 132, MAKERS = 128, GROUP = 256, STAGE_BYTES = 8192, WARPS = GROUP / 32;
constexpr int SHARE = WIDTH / MAKERS, READ = WIDTH / PARTS, PIECES = READ / 8, ROUNDS = (PIECES + GROUP - 1) / GROUP;
constexpr int DELAY = 6000;  // nanoseconds until the ring is full for the first time
static_assert(WIDTH % (8 * MAKERS) == 0 && READ % 8 == 0, "see the macros above");

struct Barriers {
    u64 full[STAGES], empty[STAGES];
};

__device__ __forceinline__ u64 now() {
    u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

// After every 1,024th turn of a wait, since the timer is slow.
__device__ __forceinline__ void check_time(u64 start, u32& turns) {
    if (++turns % 1024 == 0 && now() - start > 2000000000ull) asm volatile("trap;");
}

__device__ __forceinline__ void wait(u32 barrier, u32 parity, u64 start) {
    u32 done = 0, turns = 0;
    for (;;) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
        if (done) return;
        check_time(start, turns);
    }
}

__device__ __forceinline__ void produce(const u8* weights, u8* ring, Barriers& barriers, int stages, u64 start) {
    for (int s = 0; s < stages; ++s) {
        const int slot = s % STAGES;
        const u32 full = smem_address(&barriers.full[slot]);
        if (s >= STAGES) wait(smem_address(&barriers.empty[slot]), s / STAGES - 1 & 1, start);
        mbarrier_arrive_expect_tx(full, STAGE_BYTES);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                smem_address(ring + slot * STAGE_BYTES)),
            "l"(weights + ((size_t)s * BLOCKS + blockIdx.x) * STAGE_BYTES), "r"(STAGE_BYTES), "r"(full), "l"(EVICT_FIRST)
            : "memory");
    }
}

// Read stages first .. last - 1; returns something that depends on all words.
__device__ __forceinline__ u32 consume(const u8* ring, Barriers& barriers, int first, int last, int thread, u64 start) {
    u32 sum = 0;
    for (int s = first; s < last; ++s) {
        const int slot = s % STAGES;
        wait(smem_address(&barriers.full[slot]), s / STAGES & 1, start);
        UNROLL for (int i = 0; i < STAGE_BYTES / (16 * GROUP); ++i) {
            const uint4 v = *(const uint4*)(ring + slot * STAGE_BYTES + (i * GROUP + thread) * 16);
            sum ^= v.x ^ v.y ^ v.z ^ v.w;
        }
        __syncwarp();  // all lanes have read the stage
        if (thread % 32 == 0) mbarrier_arrive(smem_address(&barriers.empty[slot]));
    }
    return sum;
}

// The share of this block of the results of an op, from `x`, what it read of the op before.
__device__ __forceinline__ void write(u16* to, u32* counter, const u16* x, int thread) {
    for (int i = thread; i < SHARE && blockIdx.x < MAKERS; i += GROUP) {
        const int at = blockIdx.x * SHARE + i;
        const u16 value = x[(at * 5 + 1) % READ] + 1 & 0x3fff;
        asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" ::"l"(to + at), "h"(value) : "memory");
    }
    if (FORM == COUNTER) {
        named_barrier_sync<GROUP>(1);
        if (thread == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
    }
}

// Read a part of the results of an op to `x`.
template <bool WAIT>
__device__ __forceinline__ void read(u16* x, const u16* results, const u32* counter, int thread, u64 start) {
    const u16* from = results + blockIdx.x % PARTS * READ;
    uint4 v[ROUNDS];
    u32 turns = 0;
    if (WAIT && FORM == COUNTER) {
        if (thread == 0) {
            u32 sent;
            for (;;) {
                asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(sent) : "l"(counter) : "memory");
                if (sent == BLOCKS) break;
                check_time(start, turns);
            }
        }
        named_barrier_sync<GROUP>(1);
    }
    UNROLL for (int r = 0; r < ROUNDS; ++r) {
        if (r * GROUP + thread < PIECES) v[r] = load_published_16(from + (r * GROUP + thread) * 8);
    }
    if (WAIT && POLLS) {
        UNROLL for (int r = 0; r < ROUNDS; ++r) {
            if (r * GROUP + thread >= PIECES) continue;
            while (!all_halves_written(v[r])) {
                v[r] = load_published_16(from + (r * GROUP + thread) * 8);
                check_time(start, turns);
            }
        }
    }
    named_barrier_sync<GROUP>(1);  // all threads have used the previous contents of `x`
    UNROLL for (int r = 0; r < ROUNDS; ++r) {
        if (r * GROUP + thread < PIECES) *(uint4*)(x + (r * GROUP + thread) * 8) = v[r];
    }
    named_barrier_sync<GROUP>(1);  // `x` is complete
}

// `results`: (2, OPS + 1, WIDTH), used and cleared in turn, of which [.][0] are given; `counters`: (2, OPS + 1). With EDGE
// and AHEAD, `op` is the op of the launch. `times`: (BLOCKS, 2) nanoseconds.
extern "C" __global__ void __launch_bounds__(BESIDE ? 544 : 288, 1)
exchange(const unsigned char* weights, unsigned short* results, unsigned int* counters, int turn, int op,
         unsigned long long* times, unsigned int* sink) {
    extern __shared__ __align__(128) u8 ring[];
    __shared__ Barriers barriers;
    launch_dependent_grids();
    const u64 start = now();
    const int warp = threadIdx.x / 32;
    if (threadIdx.x < STAGES) {
        mbarrier_init(smem_address(&barriers.full[threadIdx.x]), 1);
        mbarrier_init(smem_address(&barriers.empty[threadIdx.x]), WARPS);
    }
    __syncthreads();
    const int first = LAUNCHES ? op : 0, ops = LAUNCHES ? 1 : OPS;
    weights += (size_t)first * PER_OP * BLOCKS * STAGE_BYTES;
    if (warp == 0) {
        if (threadIdx.x == 0) produce(weights, ring, barriers, ops * PER_OP, start);
        return;
    }
    if (FORM != AHEAD || op == 0) wait_on_dependent_grids();
    u16* const x = (u16*)(ring + STAGES * STAGE_BYTES);
    u16* const mine = results + (size_t)turn * (OPS + 1) * WIDTH;
    u32* const counts = counters + turn * (OPS + 1);
    const int thread = (int)threadIdx.x - 32;
    u32 sum = 0;
    if (BESIDE && thread < GROUP) {
        sum = consume(ring, barriers, 0, ops * PER_OP, thread, start);
    } else {
        const int own = BESIDE ? thread - GROUP : thread;
        const auto clear = [&](int n) {
            u16* other = results + ((size_t)(1 - turn) * (OPS + 1) + n) * WIDTH + blockIdx.x * SHARE;
            for (int i = own; POLLS && i < SHARE && blockIdx.x < MAKERS; i += GROUP) other[i] = 0xffff;
            if (FORM == COUNTER && blockIdx.x == 0 && own == 0) counters[(1 - turn) * (OPS + 1) + n] = 0;
        };
        for (int n = 1; n <= OPS && !LAUNCHES; ++n) clear(n);
        while (BESIDE && PER_OP > 0 && now() - start < DELAY) {
        }
        if (FORM == AHEAD && op > 0) {
            read<true>(x, mine + (size_t)first * WIDTH, counts, own, start);
        } else {
            read<false>(x, mine + (size_t)first * WIDTH, counts, own, start);
        }
        for (int n = first; n < first + ops; ++n) {
            if (n > first && FORM != NONE) read<true>(x, mine + (size_t)n * WIDTH, counts + n, own, start);
            if (own == 0 && BESIDE && (n == 1 || n == OPS - 1)) times[2 * blockIdx.x + (n > 1)] = now();
            if (!BESIDE) {
                sum ^= consume(ring, barriers, (n - first) * PER_OP, (n - first + 1) * PER_OP, own, start);
                named_barrier_sync<GROUP>(1);  // as where slices of sums are added
            }
            if (FORM == AHEAD) wait_on_dependent_grids();
            if (FORM == AHEAD) clear(n + 1);
            if (FORM != NONE) write(mine + (size_t)(n + 1) * WIDTH, counts + n + 1, x, own);
        }
    }
    if (sum == 0x9e3779b9) *sink = sum;
}
