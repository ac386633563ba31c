// Warp-specialised mainloop of attention for Hopper. Roles: one producer thread copies tiles of keys and values with TMA
// into a pipeline of STAGES; consumer warpgroups multiply the tiles with 64 queries each, without waiting for
// each other.
//
// A warpgroup multiplies the scores of a tile while it multiplies the weights of the previous tile with its values. The
// tiles of a context arrive in the order K0 K1 V0 K2 V1 ..., context after context.
//
// Block 2 * TILE_Q + PRODUCER_THREADS, shared memory QUERY_TILE_BYTES + STAGES * TILE_BYTES + 1024. Macros: those of
// online_softmax.cuh; STAGES, tiles of keys and values in shared memory.
#pragma once
#include "../gpu/include/activation.cuh"
#include "../gpu/include/half.cuh"
#include "../gpu/include/pipeline.cuh"
#include "../gpu/include/tma.cuh"
#include "wgmma.cuh"
#include "online_softmax.cuh"

#ifndef STAGES
#error "STAGES must be defined"
#endif

// setmaxnreg applies to whole warpgroups: where registers are short, the producer warp gets a warpgroup of its own.
constexpr int WARPGROUPS = TILE_Q / 64, PRODUCER_THREADS = WARPGROUPS > 1 ? 128 : 32,
              THREADS = 2 * TILE_Q + PRODUCER_THREADS;
constexpr int WARPGROUP_TILE = QUERY_TILE_BYTES / WARPGROUPS;  // bytes of the queries of a warpgroup

using Pipeline = PipelineState<STAGES, TILE_BYTES>;

// Called by one thread; then a block barrier.
__device__ __forceinline__ void init_pipeline(const Pipeline& pipeline) {
    for (int i = 0; i < STAGES; ++i) {
        mbarrier_init(pipeline.full + 8 * i, 1);
        mbarrier_init(pipeline.empty + 8 * i, TILE_Q / 16 * WARP_ARRIVALS);
    }
}

// Called by all threads of the producer warpgroup (`setmaxnreg_producer`) or of the consumers (`setmaxnreg_consumer`).
__device__ __forceinline__ void setmaxnreg_producer() {
    if constexpr (WARPGROUPS > 1) setmaxnreg_dec<40>();
}

__device__ __forceinline__ void setmaxnreg_consumer() {
    if constexpr (WARPGROUPS > 1) setmaxnreg_inc<232>();
}

// Called by a consumer warp that no longer reads a stage.
__device__ __forceinline__ void release_stage(u32 empty_barrier) {
    if (EVERY_LANE_ARRIVES || threadIdx.x % 32 == 0) mbarrier_arrive(empty_barrier);
}

// Producer: start to copy the tile of keys or values of KV head `head` that begins at row `row` of the cache.
__device__ __forceinline__ void copy_rows(Pipeline& pipeline, const TensorMap& cache, int head, int row) {
    mbarrier_wait(pipeline.empty_barrier(), pipeline.phase ^ 1);
    mbarrier_arrive_expect_tx(pipeline.full_barrier(), TILE_BYTES);
    UNROLL for (int c = 0; c < COLUMNS; ++c) {
        tma_load_2d(pipeline.tile() + c * (TILE_KV * 128), cache, head * HEAD_DIM + c * 64, row, pipeline.full_barrier());
    }
    pipeline.next();
}

// Producer: start to copy tile `i` of keys or values.
__device__ __forceinline__ void copy_tile(Pipeline& pipeline, const TensorMap& cache, const KvRange& kv, int i) {
    const int position = i * TILE_KV;
    copy_rows(pipeline, cache, kv.head, __ldg(kv.pages + position / PAGE) * PAGE + position % PAGE);
}

// Barrier of the threads of this warpgroup. Warpgroup i uses named barrier i + 1.
__device__ __forceinline__ void warpgroup_sync() { named_barrier_sync<128>((int)threadIdx.x / 128 + 1); }

// Copy the queries of a warpgroup. Queries that do not exist become zeros.
__device__ __forceinline__ void store_queries(u32 tile, const u16* q, const QueryTile& queries) {
    constexpr int EACH = LINES / 2;  // 16-byte lines of the 64 rows that a thread copies
    uint4 value[EACH];
    UNROLL for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x % 128 + 128 * i, x = threadIdx.x / 128 * 64 + n / LINES;
        value[i] = make_uint4(0, 0, 0, 0);
        if (x < queries.n) value[i] = *(const uint4*)(q + queries.at(x) * HEAD_DIM + n % LINES * 8);
    }
    UNROLL for (int i = 0; i < EACH; ++i) {
        const int n = threadIdx.x % 128 + 128 * i;
        st_shared_16(tile + swizzled<64>(n / LINES, n % LINES), value[i]);
    }
    fence_async_proxy();  // wgmma reads them through the async proxy
}

// Zero the values of the last tile that are not in the cache: a weight of zero times NaN is NaN.
__device__ __forceinline__ void clear_values(u32 tile, int written) {
    for (int i = threadIdx.x % 128; i < (TILE_KV - written) * LINES; i += 128) {
        st_shared_16(tile + swizzled<TILE_KV>(written + i / LINES, i % LINES), make_uint4(0, 0, 0, 0));
    }
    fence_async_proxy();  // wgmma reads them through the async proxy
    warpgroup_sync();  // all zeros are stored
}

// Release the stages of a context without reading them; for a warpgroup without queries.
__device__ __forceinline__ void skip(Pipeline& pipeline, const KvRange& kv) {
    for (int n = 2 * (kv.end - kv.begin); n; --n) {
        mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
        release_stage(pipeline.empty_barrier());
        pipeline.next();
    }
}

// The pending rows of a context are in the cache: their tiles are complete but for the values of positions beyond. A kernel
// whose row is not in the cache yet has its own type with these functions, called before tile `i` is multiplied.
struct CachedRows {
    int written;

    __device__ __forceinline__ void complete_keys(u32, int) const {}
    // The last tile of a context.
    __device__ __forceinline__ void complete_values(u32 tile, int i) const {
        if ((i + 1) * TILE_KV > written) clear_values(tile, written - i * TILE_KV);
    }
};

// Attend to the tiles of `kv` with the queries of a warpgroup.
template <class Rows>
__device__ __forceinline__ void mainloop(Pipeline& pipeline, const KvRange& kv, const Mask& mask, u32 queries, Softmax& acc,
                                         const Rows& rows) {
    float s[SCORES][4], rescale[2];
    u32 p[TILE_KV / 16][4];
    init(acc);
    clear(s);
    mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
    rows.complete_keys(pipeline.tile(), kv.begin);
    wgmma_fence();
    wgmma_scores(s, queries, pipeline.tile());
    wgmma_wait_group<0>();
    wgmma_fence_operand(s);
    release_stage(pipeline.empty_barrier());
    pipeline.next();
    online_softmax(s, kv.begin * TILE_KV, mask, acc, rescale);
    pack_weights(p, s);
    for (int i = kv.begin + 1; i < kv.end; ++i) {
        mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
        rows.complete_keys(pipeline.tile(), i);
        wgmma_fence();
        wgmma_scores(s, queries, pipeline.tile());
        const u32 keys = pipeline.empty_barrier();
        pipeline.next();
        mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
        wgmma_fence();
        wgmma_values(acc.o, p, pipeline.tile());
        wgmma_wait_group<1>();
        wgmma_fence_operand(s);
        release_stage(keys);
        online_softmax(s, i * TILE_KV, mask, acc, rescale);
        wgmma_wait_group<0>();
        wgmma_fence_operand(acc.o);
        release_stage(pipeline.empty_barrier());
        pipeline.next();
        pack_weights(p, s);
        if (__any_sync(~0u, rescale[0] != 1.0f || rescale[1] != 1.0f)) rescale_values(acc.o, rescale);
    }
    mbarrier_wait(pipeline.full_barrier(), pipeline.phase);
    rows.complete_values(pipeline.tile(), kv.end - 1);
    wgmma_fence();
    wgmma_values(acc.o, p, pipeline.tile());
    wgmma_wait_group<0>();
    wgmma_fence_operand(acc.o);
    release_stage(pipeline.empty_barrier());
    pipeline.next();
    finish_sums(acc);
}

__device__ __forceinline__ void set_4(float* to, const float4& value) {
    to[0] = value.x, to[1] = value.y, to[2] = value.z, to[3] = value.w;
}

__device__ __forceinline__ float4 ld_shared_4(u32 address) {
    float4 value;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
                 : "r"(address)
                 : "memory");
    return value;
}

// Epilogue: write the outputs of a warpgroup's queries, through its query tile, which is no longer needed; BLOCK_COLUMNS
// columns at a time. The 16-byte lines of a row are permuted by the row's number.
__device__ __forceinline__ void epilogue(u32 tile, const QueryTile& queries, const Softmax& acc, const float* gate,
                                         u16* out) {
    constexpr int BLOCK_COLUMNS = 32 * COLUMNS, BLOCK_LINES = BLOCK_COLUMNS / 4;
    const int first = threadIdx.x / 128 * 64;
    const auto line_address = [&](int row, int line) {
        return tile + row * (4 * BLOCK_COLUMNS) + (line ^ row % 4 * 2) * 16;
    };
    UNROLL for (int start = 0; start < HEAD_DIM; start += BLOCK_COLUMNS) {
        warpgroup_sync();  // the queries, or the previous columns, are no longer read
        UNROLL for (int h = 0; h < 2; ++h) {
            const int row = query_index(h) - first;
            const float factor = __fdiv_rn(1.0f, acc.sum[h]);
            UNROLL for (int n = 0; n < BLOCK_COLUMNS / 8; ++n) {
                if (start / 8 + n >= HEAD_DIM / 8) continue;
                const float* o = acc.o[start / 8 + n] + 2 * h;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(line_address(row, 2 * n + threadIdx.x % 4 / 2) +
                                                                      threadIdx.x % 2 * 8),
                             "f"(__fmul_rn(o[0], factor)), "f"(__fmul_rn(o[1], factor))
                             : "memory");
            }
        }
        warpgroup_sync();  // all outputs of these columns are stored
        constexpr int IN_FLIGHT = BLOCK_LINES % 16 ? BLOCK_LINES / 2 : 8;  // lines of the gate that a thread loads at a time
        constexpr int AT_ONCE = 4;                                         // lines that it multiplies with the gate at a time
        static_assert(IN_FLIGHT % AT_ONCE == 0, "all lines are multiplied");
        UNROLL for (int i = 0; i < BLOCK_LINES / 2; i += IN_FLIGHT) {
            const auto place = [&](int j, int& x, int& d) {  // query and first column of a line; false if there is none
                const int n = threadIdx.x % 128 + 128 * (i + j);
                x = first + n / BLOCK_LINES, d = start + n % BLOCK_LINES * 4;
                return x < queries.n && d < HEAD_DIM;
            };
            int x, d;
            float g[IN_FLIGHT / AT_ONCE][4 * AT_ONCE];
            UNROLL for (int j = 0; j < IN_FLIGHT; ++j) {
                float4 value = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                if (GATED && place(j, x, d)) value = __ldg((const float4*)(gate + (2 * queries.at(x) + 1) * HEAD_DIM + d));
                set_4(g[j / AT_ONCE] + j % AT_ONCE * 4, value);
            }
            UNROLL for (int k = 0; k < IN_FLIGHT; k += AT_ONCE) {
                float o[4 * AT_ONCE];
                UNROLL for (int j = 0; j < AT_ONCE; ++j) {
                    float4 value = make_float4(1.0f, 1.0f, 1.0f, 1.0f);
                    if (place(k + j, x, d)) value = ld_shared_4(line_address(x - first, (d - start) / 4));
                    set_4(o + 4 * j, value);
                }
                if (GATED) mul_sigmoid_rn(o, g[k / AT_ONCE]);
                UNROLL for (int j = 0; j < AT_ONCE; ++j) {
                    if (!place(k + j, x, d)) continue;
                    *(uint2*)(out + queries.at(x) * HEAD_DIM + d) =
                        half4_saturated(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
                }
            }
        }
    }
}
