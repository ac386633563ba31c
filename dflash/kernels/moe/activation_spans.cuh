// Layout of the tokens between the expert kernels, and the product of packed tiles with them.
//
// A token's values are stored in spans of 256 float16. After the values of a span follow the sums of every 16 values as
// float16, then the rounding errors of these sums. Elements past the last value are zeros.
//
//     512 bytes of values | 32 bytes of sums | 32 bytes of rounding errors
#pragma once
#include "../gpu/include/half.cuh"
#include "../gpu/include/smem_ring.cuh"
#include "../formats/mma_tile.cuh"

constexpr int SPAN = 256, SPAN_BYTES = 576, SUMS = 512, REMAINDERS = 544;

// Index of value k in a span. ORDER 8 or 4, the RUN of the format that multiplies the span with gpu/include/wgmma.cuh: each
// 32 values in the order of B fragments. ORDER 0: k.
template <int ORDER>
__device__ __forceinline__ int span_order(int k) {
    if (ORDER == 8) return k & ~31 | (k & 4) << 2 | (k & 2) << 2 | (k & 24) >> 2 | k & 1;
    if (ORDER == 4) return k & ~15 | (k & 2) << 2 | (k & 12) >> 1 | k & 1;
    return k;
}

// Store the sum of 16 values and its rounding error, for formats with minima. `of_span`: index of the sum.
__device__ __forceinline__ void write_sum(u8* span, int of_span, float sum) {
    const u16 high = to_half(sum);
    ((u16*)(span + SUMS))[of_span] = high;
    ((u16*)(span + REMAINDERS))[of_span] = to_half(__fsub_rn(sum, to_float(high)));
}

// Store four values of a token, times `factor`. All lanes of a warp call this; four neighbouring lanes hold the 16 values of
// a sum.
template <int ORDER = 0>
__device__ __forceinline__ void write_values(u8* token, int vector, const float4& x, float factor) {
    const u16 h[4] = {half_saturated(__fmul_rn(x.x, factor)), half_saturated(__fmul_rn(x.y, factor)),
                      half_saturated(__fmul_rn(x.z, factor)), half_saturated(__fmul_rn(x.w, factor))};
    float sum = __fadd_rn(__fadd_rn(to_float(h[0]), to_float(h[1])), __fadd_rn(to_float(h[2]), to_float(h[3])));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 1));
    sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, 2));
    u8* span = token + vector / (SPAN / 4) * SPAN_BYTES;
    const int k = 4 * vector % SPAN;
    *(u32*)(span + 2 * span_order<ORDER>(k)) = h[0] | h[1] << 16;
    *(u32*)(span + 2 * span_order<ORDER>(k + 2)) = h[2] | h[3] << 16;
    if (k % 16 == 0) write_sum(span, k / 16, sum);
}

// Store the inner values of 16 weight rows from `k` on, for token tile `n` of a work item, in spans of ORDER. All lanes of a
// warp call this. h[i] and h[2 + i] are rows lane / 4 and lane / 4 + 8 of token 2 * (lane % 4) + i. `spans`: number of spans
// of a pair.
template <int ORDER>
__device__ __forceinline__ void write_inner_tile(const u16 (&h)[4], int n, const int* pairs, int n_tokens, int k, int lane,
                                                 int spans, u8* inner) {
    UNROLL for (int i = 0; i < 2; ++i) {
        float sum = __fadd_rn(to_float(h[i]), to_float(h[2 + i]));
        UNROLL for (int m = 4; m < 32; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, m));
        const int token = n * 8 + lane % 4 * 2 + i;
        if (token >= n_tokens) continue;
        u8* span = inner + ((size_t)pairs[token] * spans + k / SPAN) * SPAN_BYTES;
        ((u16*)span)[span_order<ORDER>(k % SPAN + lane / 4)] = h[i];
        ((u16*)span)[span_order<ORDER>(k % SPAN + lane / 4 + 8)] = h[2 + i];
        if (lane < 4) write_sum(span, k % SPAN / 16, sum);
    }
}

template <class A, class B>
constexpr bool is_same = false;
template <class A>
constexpr bool is_same<A, A> = true;

// Minima of a row as an A fragment: those of groups of 16 number 4 * t and 4 * t + 1 in `a`, the next two in `b`.
template <class Q>
__device__ __forceinline__ void load_minima(const u8* tile, int row, int t, u32& a, u32& b) {
    u32 m[2] = {0, 0};
    Q::minima(tile, row, t, m);
    a = Q::MINIMA == 8 ? __byte_perm(m[0], 0, 0x1010) : m[0];
    b = Q::MINIMA == 8 ? __byte_perm(m[0], 0, 0x3232) : m[1];
}

// B fragments of 32 values that begin at `x`.
template <int RUN>
__device__ __forceinline__ uint4 load_values(const u8* x, int t) {
    if constexpr (RUN == 8) {
        return *(const uint4*)(x + 16 * t);
    } else {
        const uint2 low = *(const uint2*)(x + 8 * t), high = *(const uint2*)(x + 32 + 8 * t);
        return make_uint4(low.x, low.y, high.x, high.y);
    }
}

// Tokens in shared memory, `stride` bytes apart, from value `first` of a span. Of each eight tokens the first N_ROWS exist;
// the others repeat them.
template <class Q, int N_ROWS = 8>
struct SharedTokens {
    const u8* span;
    int first, stride, lane;

    __device__ __forceinline__ const u8* row(int n) const { return span + (8 * n + lane / 4 % N_ROWS) * stride; }
    __device__ __forceinline__ uint4 values(int n, int block) const {
        return load_values<Q::RUN>(row(n) + 2 * first + 64 * block, lane % 4);
    }
    __device__ __forceinline__ uint4 sums(int n) const {
        const u8* from = row(n) + SUMS + 8 * (lane % 4);
        const uint2 high = *(const uint2*)from, low = *(const uint2*)(from + REMAINDERS - SUMS);
        return make_uint4(high.x, high.y, low.x, low.y);
    }
};

// Makes the SharedTokens of a tile from the tile's first value in the span.
template <class Q, int N_ROWS>
struct TokensOfTile {
    const u8* span;
    int stride, lane;
    __device__ __forceinline__ SharedTokens<Q, N_ROWS> operator()(int first) const { return {span, first, stride, lane}; }
};

// Add the products of M tiles with the first n_token_tiles of NT tiles of eight tokens. A token's sums have the same bits
// for any M and n_token_tiles, and for any NT above 1. With NT 1 two chains of multiplies run side by side, which changes
// the order of the additions.
template <class Q, int M, int NT, class X>
__device__ __forceinline__ void multiply_tiles(const u8* const (&tiles)[M], const X& x, int lane, int n_token_tiles,
                                               float (&total)[M][NT][4]) {
    constexpr int STEPS = Q::TILE_K / 32, EACH = NT < 2 ? 1 : 2;
    const int g = lane / 4, t = lane % 4;
    typename Q::Scales scales[M];
    UNROLL for (int m = 0; m < M; ++m) scales[m] = typename Q::Scales(tiles[m], lane);
    constexpr int CHAINS = NT == 1 && Q::GROUP == Q::TILE_K ? 2 : 1;  // of dependent multiplies
    float part[M][NT][4], other[M][4];
    clear(other), clear(part);
    UNROLL for (int j = 0; j < STEPS; ++j) {
        u32 a[M][8];
        UNROLL for (int m = 0; m < M; ++m) warp_fragment<Q>(tiles[m], scales[m], j, lane, a[m]);
        UNROLL for (int start = 0; start < NT; start += EACH) {
            if (start >= n_token_tiles) continue;
            UNROLL for (int n = start; n < start + EACH; ++n) {
                const uint4 b = x.values(n, j);
                UNROLL for (int m = 0; m < M; ++m) {
                    float d[4];
                    if constexpr (Q::GROUP == Q::TILE_K) {
                        mma_m16n8k16(part[m][n], a[m], b.x, b.y);
                        mma_m16n8k16(CHAINS == 2 ? other[m] : part[m][n], a[m] + 4, b.z, b.w);
                    } else if constexpr (Q::GROUP == 32) {
                        clear(d);
                        mma_m16n8k16(d, a[m], b.x, b.y);
                        mma_m16n8k16(d, a[m] + 4, b.z, b.w);
                        add_scaled(total[m][n], d, scales[m].of(0, j), scales[m].of(1, j));
                    } else {
                        clear(d);
                        mma_m16n8k16(d, a[m], b.x, b.y);
                        add_scaled(part[m][n], d, scales[m].of(0, 2 * j), scales[m].of(1, 2 * j));
                        clear(d);
                        mma_m16n8k16(d, a[m] + 4, b.z, b.w);
                        add_scaled(part[m][n], d, scales[m].of(0, 2 * j + 1), scales[m].of(1, 2 * j + 1));
                    }
                }
            }
        }
    }
    UNROLL for (int m = 0; m < M; ++m) {
        if constexpr (Q::GROUP != 32) {
            const float upper = row_scale<Q>(tiles[m], g), lower = row_scale<Q>(tiles[m], g + 8);
            UNROLL for (int i = 0; i < 4 && CHAINS == 2; ++i) part[m][0][i] = __fadd_rn(part[m][0][i], other[m][i]);
            UNROLL for (int n = 0; n < NT; ++n) add_scaled(total[m][n], part[m][n], upper, lower);
        }
        if constexpr (Q::MINIMA == 0) continue;
        u32 a[4];
        load_minima<Q>(tiles[m], g, t, a[0], a[2]);
        load_minima<Q>(tiles[m], g + 8, t, a[1], a[3]);
        const float upper = Q::minimum_scale(tiles[m], g), lower = Q::minimum_scale(tiles[m], g + 8);
        UNROLL for (int n = 0; n < NT; ++n) {
            const uint4 sums = x.sums(n);
            float d[4];
            clear(d);
            mma_m16n8k16(d, a, sums.x, sums.y);
            mma_m16n8k16(d, a, sums.z, sums.w);
            add_scaled(total[m][n], d, upper, lower);
        }
    }
}

// Spans of a stripe, 16 rows of K weights: N spans of FULL tiles, BYTES bytes each; the last one has LAST tiles.
template <class Q, int K>
struct Spans {
    static constexpr int N = (K + SPAN - 1) / SPAN, OF_ROW = (K + Q::TILE_K - 1) / Q::TILE_K, FULL = SPAN / Q::TILE_K;
    static constexpr int LAST = OF_ROW - (N - 1) * FULL, BYTES = FULL * Q::BYTES;

    // Start of matrix number `matrix` in a stack of matrices of `stripes` stripes.
    __device__ static __forceinline__ const u8* of(const u8* weights, int matrix, int stripes) {
        return weights + (size_t)matrix * stripes * OF_ROW * Q::BYTES;
    }
    // Start to copy a span of M stripes, from `stripe` on; by a warp.
    template <int M>
    __device__ static __forceinline__ void fetch(u32 to, const u8* matrix, int stripe, int span, u32 barrier, int lane) {
        const u8* from[M];
        UNROLL for (int m = 0; m < M; ++m) from[m] = matrix + (size_t)((stripe + m) * OF_ROW + span * FULL) * Q::BYTES;
        if (LAST == FULL || span < N - 1) {
            copy_tiles_async<M, BYTES>(to, from, 0, barrier, lane);
        } else {
            copy_tiles_async<M, LAST * Q::BYTES>(to, from, 0, barrier, lane);
        }
    }
    // Bytes from one stripe's span to the next in shared memory after `fetch`.
    __device__ static __forceinline__ int step(int span) { return (LAST == FULL || span < N - 1 ? FULL : LAST) * Q::BYTES; }
    // Add the products of a span of M stripes with tokens; `of_tile` is a TokensOfTile.
    template <int M, class OfTile>
    __device__ static __forceinline__ void multiply(const u8* const (&stripes)[M], int span, OfTile of_tile, int lane,
                                                    float (&total)[M][1][4]) {
        UNROLL for (int i = 0; i < FULL; ++i) {
            if (LAST == FULL || i < LAST || span < N - 1) {
                const u8* tiles[M];
                UNROLL for (int m = 0; m < M; ++m) tiles[m] = stripes[m] + i * Q::BYTES;
                multiply_tiles<Q, M, 1>(tiles, of_tile(i * Q::TILE_K), lane, 1, total);
            }
        }
    }
};

// Position of a warp in its pipeline of N stages of BYTES bytes.
template <int N, int BYTES>
struct PipelineState {
    u8* stages;
    u32 barriers;
    int stage, phase;

    __device__ PipelineState(u8* stages, u64* barriers)
        : stages(stages), barriers(smem_address(barriers)), stage(0), phase(0) {}
    __device__ __forceinline__ const u8* wait() const {
        mbarrier_wait(barriers + 8 * stage, phase);
        return stages + stage * BYTES;
    }
    __device__ __forceinline__ void advance() {
        if (++stage == N) stage = 0, phase ^= 1;
    }
};
