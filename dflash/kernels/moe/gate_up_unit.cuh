// Units of the gate and up projections, for few rows (gate_up_small.cu) and for items (gate_up.cu). A unit is 16 rows of the
// gate and the same rows of the up projection. Each of SPANS warps multiplies a span of K (split-K); one warp adds their
// sums and writes the unit.
//
// Macros: those of shape.cuh; GATE, UP, SHARED_GATE, SHARED_UP, formats.
#pragma once
#include "../gpu/include/activation.cuh"
#include "activation_spans.cuh"
#include "shape.cuh"

#if !defined(GATE) || !defined(UP) || !defined(SHARED_GATE) || !defined(SHARED_UP)
#error "GATE, UP, SHARED_GATE and SHARED_UP must be defined"
#endif

constexpr int PAIRS = 4, SPANS = (MODEL_DIM + SPAN - 1) / SPAN, THREADS = 32 * SPANS;
constexpr int INNER_SPANS = (larger(FFN_DIM, SHARED_FFN_DIM) + SPAN - 1) / SPAN,
              UNITS = INNER_SPANS * 16;  // units of an item
template <class Q>
using Row = Spans<Q, MODEL_DIM>;
constexpr int PIECE = larger(Row<GATE>::BYTES + Row<UP>::BYTES, Row<SHARED_GATE>::BYTES + Row<SHARED_UP>::BYTES);
// True if the shared expert has the formats of the others, so that one code path serves both.
constexpr bool SHARED_ALIKE = is_same<GATE, SHARED_GATE> && is_same<UP, SHARED_UP>;
static_assert(FFN_DIM % 16 == 0 && SHARED_FFN_DIM % 16 == 0, "inner rows must be a multiple of 16");
static_assert(SPANS <= 32, "a warp takes a span, and a block has at most 32 warps");

// Start to copy a span of the gate and then of the up projection. `barrier` expects two copies.
template <class G, class U>
__device__ __forceinline__ void fetch_both(u32 to, const u8* gate, const u8* up, int matrix, int stripes, int unit, int span,
                                           u32 barrier, int lane) {
    const int stripe = min(unit, stripes - 1);
    Row<G>::template fetch<1>(to, Row<G>::of(gate, matrix, stripes), stripe, span, barrier, lane);
    Row<U>::template fetch<1>(to + Row<G>::BYTES, Row<U>::of(up, matrix, stripes), stripe, span, barrier, lane);
}

// Add the products of a span of the gate and of the up projection, which begins at `gate` in shared memory, with ROWS
// tokens.
template <class G, class U, int ROWS>
__device__ __forceinline__ void multiply_both(const u8* gate, const u8* tokens, int stride, int warp, int lane,
                                              float (&totals)[2][1][4]) {
    const u8* up = gate + Row<G>::BYTES;
    const TokensOfTile<G, ROWS> of_gate = {tokens, stride, lane};
    const TokensOfTile<U, ROWS> of_up = {tokens, stride, lane};
    if constexpr (is_same<G, U>) {
        Row<G>::template multiply<2>({gate, up}, warp, of_gate, lane, totals);
    } else {
        Row<G>::template multiply<1>({gate}, warp, of_gate, lane, (float (&)[1][1][4])totals[0]);
        Row<U>::template multiply<1>({up}, warp, of_up, lane, (float (&)[1][1][4])totals[1]);
    }
}

// Store a warp's sums of a unit in shared memory.
__device__ __forceinline__ void store_sums(float4 (*to)[2][32], int warp, int lane, const float (&gate)[4],
                                           const float (&up)[4]) {
    to[warp][0][lane] = make_float4(gate[0], gate[1], gate[2], gate[3]);
    to[warp][1][lane] = make_float4(up[0], up[1], up[2], up[3]);
}

// Add the warps' sums of a unit and write the inner values of n tokens; by one warp.
__device__ __forceinline__ void write_unit(const float4 (*sums)[2][32], int unit, int stripes, int pair, int n, int lane,
                                           u8* inner) {
    for (int i = lane; i < 16 * ((n + 1) & ~1); i += 32) {
        const int token = i / 16, row = i % 16, k = unit * 16 + row;
        const int at = (row % 8 * 4 + token / 2) * 4 + row / 8 * 2 + token % 2;
        float gate = 0.0f, up = 0.0f;
        UNROLL for (int s = 0; s < SPANS; ++s) {
            gate = __fadd_rn(gate, ((const float*)sums[s][0])[at]);
            up = __fadd_rn(up, ((const float*)sums[s][1])[at]);
        }
        const float value = unit < stripes ? __fmul_rn(__fmul_rn(ACTIVATE(silu_rn)(gate), up), INNER_SCALE) : 0.0f;
        const u16 h = half_saturated(value);
        float sum = to_float(h);
        UNROLL for (int m = 1; m < 16; m *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, m));
        const int to = __shfl_sync(~0u, pair, token);
        if (to < 0) continue;
        u8* span = inner + ((size_t)to * INNER_SPANS + k / SPAN) * SPAN_BYTES;
        ((u16*)span)[k % SPAN] = h;
        if (row == 0) write_sum(span, k % SPAN / 16, sum);
    }
}
