// Scores of pairs of candidates, as a DFlash 2 drafter computes them: how well candidate j of a position follows candidate a of the
// position before, score(a, j) = logit[j] + sum(before[a] * gate * after[j]), then log-probabilities over j, with noise where the
// sampling parameters have a scale.
// SEQUENTIAL: as in DSpark, whose logits already hold the correction by one token before, the code of which comes in place of a gate:
// score(a, j) = logit[j] + sum((before[a] - code) * after[j]). Without noise the candidates together keep their probability mass.
//
// `edge_tokens` lists the tokens whose codes are needed: grid rows, block TOP. `edge_scores`: grid rows, block TOP * TOP; thread (a, j).
// A block of a drafter is BLOCK_ROWS rows, of which those from FIRST_DRAFT_ROW on draft a token. Macros: VOCAB; THREADS and MAX_TOP as
// in candidates.cu; TOP, candidates of a row; RANK, elements of a code; BLOCK_ROWS; FIRST_DRAFT_ROW; SEQUENTIAL.
// gates: (rows, RANK), or (BLOCK_ROWS, sequences, RANK) if SEQUENTIAL. Bytes: 8 * TOP * RANK a row.
#include "../gpu/include/pdl.cuh"
#include "gumbel.cuh"
#include "rows.cuh"

#if !defined(TOP) || !defined(RANK) || !defined(BLOCK_ROWS) || !defined(FIRST_DRAFT_ROW) || !defined(SEQUENTIAL) || \
    !defined(MAX_TOP)
#error "TOP, RANK, BLOCK_ROWS, FIRST_DRAFT_ROW, SEQUENTIAL and MAX_TOP must be defined"
#endif
static_assert(TOP <= 32, "candidates of a row fit a warp");
constexpr float UNIT_OF_TOTAL = 17592186044416.0f;  // 2^44
constexpr int SLICE = RANK < 128 ? RANK : 128;      // of a code, in shared memory

struct Found {
    u64 total;
    float largest, chosen;
    int ids[MAX_TOP];
    float values[MAX_TOP];
};

// The first is for the token before each row, the second for its own; targets, if any, are what tokens are called there, but
// for `after` where codes are `own`, of the columns of the logits.
extern "C" __global__ void __launch_bounds__(TOP) edge_tokens(const int* found, const float* largest, const int* tokens,
                                                              const int* targets, int own, int* ids, int* before, int* after) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, i = threadIdx.x, at = row * TOP + i;
    const auto column = [&](int row) {
        return is_invalid(largest[row]) || i >= VOCAB ? -1 : ((const Found*)found)[row].ids[i];
    };
    const auto named = [&](int column) { return targets && column >= 0 ? targets[column] : column; };
    const int mine = column(row), id = named(mine);
    ids[at] = id;
    after[at] = max(own ? mine : id, 0);
    before[at] = row % BLOCK_ROWS <= FIRST_DRAFT_ROW ? tokens[row - row % BLOCK_ROWS] : max(named(column(row - 1)), 0);
}

__device__ __forceinline__ float reduce_row(float value, float* of_row, bool largest) {
    __syncthreads();
    of_row[threadIdx.x % TOP] = value;
    __syncthreads();
    float result = of_row[0];
    for (int i = 1; i < TOP; ++i) result = largest ? fmaxf(result, of_row[i]) : result + of_row[i];
    return result;
}

extern "C" __global__ void __launch_bounds__(TOP* TOP, 1)
edge_scores(const int* found, const float* largest, const int* ids, const float* before, const float* after,
            const float* gates, int texts, const int* laws, const int* position, int shift, float* scores, float* edges) {
    __shared__ float first[TOP][SLICE + 1], second[TOP][SLICE + 1], line[TOP][TOP];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int row = blockIdx.x, a = threadIdx.x / TOP, j = threadIdx.x % TOP;
    const float nothing = __int_as_float(0xff800000);
    const SampleParams law = ((const SampleParams*)laws)[row / BLOCK_ROWS];
    const float* gate = gates + (size_t)(SEQUENTIAL ? row % BLOCK_ROWS * texts + row / BLOCK_ROWS : row) * RANK;
    float lift = 0.0f;
    for (int start = 0; start < RANK; start += SLICE) {
        const int n = min(SLICE, RANK - start);
        __syncthreads();
        for (int i = threadIdx.x; i < TOP * SLICE; i += TOP * TOP) {
            const int which = i / SLICE, at = start + i % SLICE;
            if (at >= RANK) continue;
            const size_t from = ((size_t)row * TOP + which) * RANK + at;
            first[which][i % SLICE] = SEQUENTIAL ? __fsub_rn(before[from], gate[at]) : __fmul_rn(before[from], gate[at]);
            second[which][i % SLICE] = after[from];
        }
        __syncthreads();
        for (int i = 0; i < n; ++i) lift = __fmaf_rn(first[a][i], second[j][i], lift);
    }
    const int id = ids[row * TOP + j];
    const float value = id < 0 ? nothing : ((const Found*)found)[row].values[j];
    float score = value + lift;
    // what is no number is left out, of all that follow the same candidate
    const bool broken = reduce_row(id >= 0 && !(fabsf(score) < __int_as_float(0x7f800000)) ? 1.0f : 0.0f, line[a], true) > 0.0f;
    if (broken || id < 0) score = value;
    const float best = reduce_row(score, line[a], true), mean = reduce_row(value, line[a], true);
    if (law.scale > 0.0f) {
        float x = score > nothing ? scaled(score, best, law.scale) : nothing;
        __syncthreads();
        line[a][j] = x;
        __syncthreads();
        const int most = law.top_k > 0 ? law.top_k : TOP;
        int larger = 0;
        double before = 0.0, total = 0.0;
        for (int i = 0; i < TOP && law.top_p < 1.0; ++i) {
            const float other = line[a][i];
            int rank = 0;
            for (int k = 0; k < TOP; ++k) rank += line[a][k] > other || (line[a][k] == other && k < i);
            const double mass = rank < most ? exp((double)other) : 0.0;
            total += mass, before += other > x ? mass : 0.0;
        }
        for (int i = 0; i < TOP; ++i) larger += line[a][i] > x;
        const bool shares = law.top_p >= 1.0 || larger == 0 || before < law.top_p * total;
        const bool kept = x >= law.floor && x > nothing && larger < most && shares;
        score = kept ? __fadd_rn(x, gumbel(max(id, 0), position[row] + shift, law.seed)) : nothing;
    }
    const float top = reduce_row(score, line[a], true);
    const float total = reduce_row(score > nothing ? expf(score - top) : 0.0f, line[a], false);
    const float of_values = reduce_row(value > nothing ? expf(value - mean) : 0.0f, line[a], false);
    float mass = 0.0f;
    if (SEQUENTIAL && law.scale <= 0.0f) {
        mass = mean - largest[row] + logf(of_values * UNIT_OF_TOTAL / (float)((const Found*)found)[row].total);
    }
    edges[((size_t)row * TOP + a) * TOP + j] = score > nothing ? score - top - logf(total) + mass : nothing;
    if (a == 0) scores[row * TOP + j] = value > nothing ? value - mean - logf(of_values) : nothing;
}
