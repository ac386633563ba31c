// A tile of queries meets its text on Hopper: a warp of its own has the tiles of the text copied to a ring of slots, and groups of
// four warps with 64 queries each multiply them, each at its own pace.
//
// A group multiplies the scores of a tile while the tile before meets its values. The tiles of a text follow each other in the
// order K0 K1 V0 K2 V1 ..., text after text.
//
// Block 2 * QUERIES + COPIERS; shared QUERY_TILE + SLOTS * TILE + 1024 bytes. Macros: SLOTS, of the ring.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/tma.cuh"
#include "products_hopper.cuh"
#include "flash.cuh"

#ifndef SLOTS
#error "SLOTS must be defined"
#endif

// Registers are dealt to groups: where they are short the copying warp has a group, of which it needs few.
constexpr int GROUPS = QUERIES / 64, COPIERS = GROUPS > 1 ? 128 : 32, THREADS = 2 * QUERIES + COPIERS;
constexpr int GROUP_TILE = QUERY_TILE / GROUPS;  // the queries of a group

struct Ring {
    u32 slots, full, free;  // addresses; barriers of 8 bytes a slot
    int slot, phase;        // of the next tile

    __device__ __forceinline__ u32 tile() const { return slots + slot * TILE; }
    __device__ __forceinline__ u32 is_full() const { return full + 8 * slot; }
    __device__ __forceinline__ u32 is_free() const { return free + 8 * slot; }
    __device__ __forceinline__ void next() {
        if (++slot == SLOTS) slot = 0, phase ^= 1;
    }
};

// Called by one thread; the others must not go on before it has.
__device__ __forceinline__ void begin_ring(const Ring& ring) {
    for (int i = 0; i < SLOTS; ++i) {
        mbarrier_init(ring.full + 8 * i, 1);
        mbarrier_init(ring.free + 8 * i, QUERIES / 16);
    }
}

// Called by all threads of the copying group, or of the others.
__device__ __forceinline__ void take_copiers_registers() {
    if constexpr (GROUPS > 1) setmaxnreg_dec<40>();
}

__device__ __forceinline__ void take_multipliers_registers() {
    if constexpr (GROUPS > 1) setmaxnreg_inc<232>();
}

// A warp is done with a slot.
__device__ __forceinline__ void give_back(u32 is_free) {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(is_free);
}

// Have tile `i` of keys or values copied.
__device__ __forceinline__ void copy_tile(Ring& ring, const TensorMap& cache, const Text& text, int i) {
    const int position = i * KEYS, row = __ldg(text.pages + position / PAGE) * PAGE + position % PAGE;
    mbarrier_wait(ring.is_free(), ring.phase ^ 1);
    mbarrier_arrive_expect_tx(ring.is_full(), TILE);
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        tma_load_2d(ring.tile() + c * (KEYS * 128), cache, text.head * HEAD + c * 64, row, ring.is_full());
    }
    ring.next();
}

// Wait for the threads of this warpgroup; named barriers 1, 2, ... are those of the warpgroups.
__device__ __forceinline__ void warpgroup_sync() { named_barrier_sync<128>((int)threadIdx.x / 128 + 1); }

// Copy the queries of a group; those that do not exist are zeros.
__device__ __forceinline__ void store_queries(u32 tile, const u16* q, const Queries& queries) {
    constexpr int EACH = LINES / 2;  // of the 64 rows' lines, for a thread
    uint4 value[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x % 128 + 128 * i, x = threadIdx.x / 128 * 64 + n / LINES;
        value[i] = make_uint4(0, 0, 0, 0);
        if (x < queries.n) value[i] = *(const uint4*)(q + queries.at(x) * HEAD + n % LINES * 8);
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x % 128 + 128 * i;
        st_shared_16(tile + place<64>(n / LINES, n % LINES), value[i]);
    }
    fence_async_proxy();
}

// Make zeros of the values of the last tile that are not in the cache: weights of zero can't undo what is not a number.
__device__ __forceinline__ void clear_values(u32 tile, int written) {
    for (int i = threadIdx.x % 128; i < (KEYS - written) * LINES; i += 128) {
        st_shared_16(tile + place<KEYS>(written + i / LINES, i % LINES), make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();
    warpgroup_sync();
}

// A group without queries lets a text pass.
__device__ __forceinline__ void pass(Ring& ring, const Text& text) {
    for (int n = 2 * (text.end - text.begin); n; --n) {
        mbarrier_wait(ring.is_full(), ring.phase);
        give_back(ring.is_free());
        ring.next();
    }
}

// Read a text with the queries of a group.
__device__ __forceinline__ void read(Ring& ring, const Text& text, const Sight& sight, u32 queries, Sums& sums) {
    float s[SCORES][4], rescale[2];
    u32 p[KEYS / 16][4];
    clear(sums);
#pragma unroll
    for (int n = 0; n < SCORES; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    mbarrier_wait(ring.is_full(), ring.phase);
    wgmma_fence();
    begin_scores(s, queries, ring.tile());
    wgmma_wait_group<0>();
    wgmma_fence_operand(s);
    give_back(ring.is_free());
    ring.next();
    soften(s, text.begin * KEYS, sight, sums, rescale);
    pack(p, s);
    for (int i = text.begin + 1; i < text.end; ++i) {
        mbarrier_wait(ring.is_full(), ring.phase);
        wgmma_fence();
        begin_scores(s, queries, ring.tile());
        const u32 keys = ring.is_free();
        ring.next();
        mbarrier_wait(ring.is_full(), ring.phase);
        begin_values(sums.o, p, ring.tile());
        wgmma_wait_group<1>();
        wgmma_fence_operand(s);
        give_back(keys);
        soften(s, i * KEYS, sight, sums, rescale);
        wgmma_wait_group<0>();
        wgmma_fence_operand(sums.o);
        give_back(ring.is_free());
        ring.next();
        pack(p, s);
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) multiply_all(sums.o, rescale);
    }
    mbarrier_wait(ring.is_full(), ring.phase);
    if (text.end * KEYS > text.written) clear_values(ring.tile(), text.written - (text.end - 1) * KEYS);
    wgmma_fence();
    begin_values(sums.o, p, ring.tile());
    wgmma_wait_group<0>();
    wgmma_fence_operand(sums.o);
    give_back(ring.is_free());
    ring.next();
    complete(sums);
}

// Write the values of a group's queries, through its tile of queries, which nothing reads any more, WIDE columns at a time: the
// lines of 16 bytes of a row are permuted by the row's number.
__device__ __forceinline__ void finish_group(u32 tile, const Queries& queries, const Sums& sums, const float* gate, u16* out) {
    constexpr int WIDE = 32 * COLUMNS, WIDE_LINES = WIDE / 4;
    const int first = threadIdx.x / 128 * 64;
    const auto place_of = [&](int row, int line) { return tile + row * (4 * WIDE) + (line ^ row % 4 * 2) * 16; };
#pragma unroll
    for (int start = 0; start < HEAD; start += WIDE) {
        warpgroup_sync();
#pragma unroll
        for (int h = 0; h < 2; ++h) {
            const int row = query_of(h) - first;
            const float factor = __fdiv_rn(1.0f, sums.sum[h]);
#pragma unroll
            for (int n = 0; n < WIDE / 8; ++n) {
                if (start / 8 + n >= HEAD / 8) continue;
                const float* o = sums.o[start / 8 + n] + 2 * h;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(place_of(row, 2 * n + threadIdx.x % 4 / 2) +
                                                                      threadIdx.x % 2 * 8),
                             "f"(__fmul_rn(o[0], factor)), "f"(__fmul_rn(o[1], factor))
                             : "memory");
            }
        }
        warpgroup_sync();
        constexpr int MANY = WIDE_LINES % 16 ? WIDE_LINES / 2 : 8;  // of WIDE_LINES / 2 that are a thread's, at a time
#pragma unroll
        for (int i = 0; i < WIDE_LINES / 2; i += MANY) {
            float4 g[MANY];
#pragma unroll
            for (int j = 0; j < MANY; ++j) {
                const int n = threadIdx.x % 128 + 128 * (i + j), x = first + n / WIDE_LINES, d = start + n % WIDE_LINES * 4;
                if (!GATED || x >= queries.n || d >= HEAD) continue;
                g[j] = __ldg((const float4*)(gate + (2 * queries.at(x) + 1) * HEAD + d));
            }
#pragma unroll
            for (int j = 0; j < MANY; ++j) {
                const int n = threadIdx.x % 128 + 128 * (i + j), x = first + n / WIDE_LINES, d = start + n % WIDE_LINES * 4;
                if (x >= queries.n || d >= HEAD) continue;
                float4 o;
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(o.x), "=f"(o.y), "=f"(o.z), "=f"(o.w)
                             : "r"(place_of(x - first, n % WIDE_LINES))
                             : "memory");
                if (GATED) {
                    o.x = mul_sigmoid_rn(o.x, g[j].x), o.y = mul_sigmoid_rn(o.y, g[j].y);
                    o.z = mul_sigmoid_rn(o.z, g[j].z), o.w = mul_sigmoid_rn(o.w, g[j].w);
                }
                *(uint2*)(out + queries.at(x) * HEAD + d) =
                    make_uint2(half_saturated(o.x) | (u32)half_saturated(o.y) << 16,
                               half_saturated(o.z) | (u32)half_saturated(o.w) << 16);
            }
        }
    }
}
