// Scores of pairs of candidates of a DFlash 2 drafter: how well candidate j of a position follows candidate a of the
// position before. score(a, j) = logit[j] + sum(before[a] * gate * after[j]). The outputs are log probabilities over j, with
// Gumbel noise if the sampling parameters have a scale.
//
// SEQUENTIAL 1 is the form of DSpark. Its logits already contain the correction for one previous token, whose code is passed
// in place of the gate: score(a, j) = logit[j] + sum((before[a] - code) * after[j]). Without noise the candidates together
// keep the probability mass that they have in the whole vocabulary.
//
// `edge_tokens` lists the tokens whose codes are needed: grid (rows), block TOP, no shared memory. `edge_scores`: grid
// (rows), block TOP * TOP, thread (a, j); shared memory 8 * TOP * (CODE_SLICE + 1) + 4 * TOP * TOP bytes (static).
// A drafter's block has BLOCK_ROWS rows; those from FIRST_DRAFT_ROW on draft a token. Macros: VOCAB; THREADS and MAX_TOP as
// in candidates.cu; TOP, candidates of a row; RANK, elements of a code; BLOCK_ROWS; FIRST_DRAFT_ROW; SEQUENTIAL.
// `gates`: (rows, RANK), or (BLOCK_ROWS, sequences, RANK) if SEQUENTIAL. Bytes: 8 * TOP * RANK a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

#if !defined(TOP) || !defined(RANK) || !defined(BLOCK_ROWS) || !defined(FIRST_DRAFT_ROW) || !defined(SEQUENTIAL) || \
    !defined(MAX_TOP)
#error "TOP, RANK, BLOCK_ROWS, FIRST_DRAFT_ROW, SEQUENTIAL and MAX_TOP must be defined"
#endif
static_assert(TOP <= 32, "candidates of a row fit a warp");
constexpr float TOTAL_UNIT = 17592186044416.0f;      // 2^44: units of `total` in 1
constexpr int CODE_SLICE = RANK < 128 ? RANK : 128;  // elements of a code that are in shared memory at a time

// List the tokens whose codes `edge_scores` needs: `before`, candidates of the row before (or its token, for the first draft
// row); `after`, candidates of the row itself; `ids`, the same as target tokens. `targets`, if not null, maps draft tokens
// to target tokens. With `own`, codes in `after` belong to the columns of the logits, not to target tokens.
extern "C" __global__ void __launch_bounds__(TOP)
edge_tokens(const int* found, const float* largest, const int* tokens, const int* targets, int own, int* ids,
            int* before, int* after) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, i = threadIdx.x, at = row * TOP + i;
    const auto column = [&](int row) {
        return is_invalid(largest[row]) || i >= VOCAB ? -1 : ((const RowLogprobs*)found)[row].ids[i];
    };
    const auto target_id = [&](int column) { return targets && column >= 0 ? targets[column] : column; };
    const int mine = column(row), id = target_id(mine);
    ids[at] = id;
    after[at] = max(own ? mine : id, 0);
    before[at] = row % BLOCK_ROWS <= FIRST_DRAFT_ROW ? tokens[row - row % BLOCK_ROWS] : max(target_id(column(row - 1)), 0);
}

// Sum or maximum of `value` over the threads (a, j) of one `a`. `of_row`: scratch of that `a` in shared memory.
__device__ __forceinline__ float reduce_row(float value, float* of_row, bool largest) {
    __syncthreads();  // `of_row` of the previous call was read
    of_row[threadIdx.x % TOP] = value;
    __syncthreads();  // all values are stored
    float result = of_row[0];
    for (int i = 1; i < TOP; ++i) result = largest ? fmaxf(result, of_row[i]) : result + of_row[i];
    return result;
}

extern "C" __global__ void __launch_bounds__(TOP* TOP, 1)
edge_scores(const int* found, const float* largest, const int* ids, const float* before, const float* after,
            const float* gates, int texts, const int* row_params, const int* position, int shift, float* scores,
            float* edges) {
    __shared__ float first[TOP][CODE_SLICE + 1], second[TOP][CODE_SLICE + 1], row_values[TOP][TOP];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, a = threadIdx.x / TOP, j = threadIdx.x % TOP;
    const float minus_infinity = __int_as_float(0xff800000);
    const SampleParams params = ((const SampleParams*)row_params)[row / BLOCK_ROWS];
    const float* gate = gates + (size_t)(SEQUENTIAL ? row % BLOCK_ROWS * texts + row / BLOCK_ROWS : row) * RANK;
    float edge = 0.0f;
    for (int start = 0; start < RANK; start += CODE_SLICE) {
        const int n = min(CODE_SLICE, RANK - start);
        __syncthreads();  // the previous slice was read
        for (int i = threadIdx.x; i < TOP * CODE_SLICE; i += TOP * TOP) {
            const int which = i / CODE_SLICE, at = start + i % CODE_SLICE;
            if (at >= RANK) continue;
            const size_t from = ((size_t)row * TOP + which) * RANK + at;
            first[which][i % CODE_SLICE] =
                SEQUENTIAL ? __fsub_rn(before[from], gate[at]) : __fmul_rn(before[from], gate[at]);
            second[which][i % CODE_SLICE] = after[from];
        }
        __syncthreads();  // the slice is complete
        for (int i = 0; i < n; ++i) edge = __fmaf_rn(first[a][i], second[j][i], edge);
    }
    const int id = ids[row * TOP + j];
    const float value = id < 0 ? minus_infinity : ((const RowLogprobs*)found)[row].values[j];
    float score = value + edge;
    // a score that is not finite invalidates all scores with the same `a`: then the logits alone count
    const bool invalid =
        reduce_row(id >= 0 && !(fabsf(score) < __int_as_float(0x7f800000)) ? 1.0f : 0.0f, row_values[a], true) > 0.0f;
    if (invalid || id < 0) score = value;
    const float best = reduce_row(score, row_values[a], true), mean = reduce_row(value, row_values[a], true);
    if (params.scale > 0.0f) {
        float x = score > minus_infinity ? scaled(score, best, params.scale) : minus_infinity;
        __syncthreads();  // `row_values` of the last reduction was read
        row_values[a][j] = x;
        __syncthreads();  // all scaled scores are stored
        const int top_k = params.top_k > 0 ? params.top_k : TOP;
        int larger = 0;
        double before = 0.0, total = 0.0;
        for (int i = 0; i < TOP && params.top_p < 1.0; ++i) {
            const float other = row_values[a][i];
            int rank = 0;
            for (int k = 0; k < TOP; ++k) rank += row_values[a][k] > other || (row_values[a][k] == other && k < i);
            const double weight = rank < top_k ? exp((double)other) : 0.0;
            total += weight, before += other > x ? weight : 0.0;
        }
        for (int i = 0; i < TOP; ++i) larger += row_values[a][i] > x;
        const bool in_top_p = params.top_p >= 1.0 || larger == 0 || before < params.top_p * total;
        const bool selected = x >= params.floor && x > minus_infinity && larger < top_k && in_top_p;
        score = selected ? __fadd_rn(x, gumbel(max(id, 0), position[row] + shift, params.seed)) : minus_infinity;
    }
    const float top = reduce_row(score, row_values[a], true);
    const float total = reduce_row(score > minus_infinity ? expf(score - top) : 0.0f, row_values[a], false);
    const float value_sum = reduce_row(value > minus_infinity ? expf(value - mean) : 0.0f, row_values[a], false);
    float weight = 0.0f;
    if (SEQUENTIAL && params.scale <= 0.0f) {
        weight = mean - largest[row] + logf(value_sum * TOTAL_UNIT / (float)((const RowLogprobs*)found)[row].total);
    }
    edges[((size_t)row * TOP + a) * TOP + j] = score > minus_infinity ? score - top - logf(total) + weight : minus_infinity;
    if (a == 0) scores[row * TOP + j] = value > minus_infinity ? value - mean - logf(value_sum) : minus_infinity;
}
