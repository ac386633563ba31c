// Confidence head of a drafter: the number of draft positions, from the first one on, whose product of confidences is at
// least `least`. The confidence of a position is sigmoid(weight . [norm(row); code] + bias).
//
// A warp handles one draft row. Grid (sequences), block 32 * (BLOCK_ROWS - FIRST_DRAFT_ROW), shared memory: one float a warp
// (static).
// Macros: MODEL_DIM, elements of a row; RANK, elements of a code; BLOCK_ROWS, rows of a block; FIRST_DRAFT_ROW, rows at the
// start of a block that draft no token.
// `stream`: rows before the final norm, whose gain is folded into `weight`. `codes`: (BLOCK_ROWS, sequences, RANK), codes of
// the token before each row. `reach`: the result, one integer a sequence. Bytes: 8 * MODEL_DIM a row.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(MODEL_DIM) || !defined(RANK) || !defined(BLOCK_ROWS) || !defined(FIRST_DRAFT_ROW)
#error "MODEL_DIM, RANK, BLOCK_ROWS and FIRST_DRAFT_ROW must be defined"
#endif

constexpr int ROWS = BLOCK_ROWS - FIRST_DRAFT_ROW;

extern "C" __global__ void __launch_bounds__(32 * ROWS)
confidence(const float* stream, const float* codes, const float* weight, float bias, float eps, float least,
           int texts, int* reach) {
    __shared__ float confidences[ROWS];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int sequence = blockIdx.x, t = FIRST_DRAFT_ROW + threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* row = stream + (size_t)(sequence * BLOCK_ROWS + t) * MODEL_DIM;
    const float* code = codes + (size_t)(t * texts + sequence) * RANK;
    float squares = 0.0f, sum = 0.0f, code_sum = 0.0f;
    for (int i = lane; i < MODEL_DIM; i += 32) {
        squares = __fmaf_rn(row[i], row[i], squares);
        sum = __fmaf_rn(row[i], weight[i], sum);
    }
    for (int i = lane; i < RANK; i += 32) code_sum = __fmaf_rn(code[i], weight[MODEL_DIM + i], code_sum);
    squares = warp_sum(squares), sum = warp_sum(sum), code_sum = warp_sum(code_sum);
    if (lane == 0)
        confidences[t - FIRST_DRAFT_ROW] =
            1.0f / (1.0f + expf(-(__fmaf_rn(sum, rsqrtf(squares / MODEL_DIM + eps), code_sum) + bias)));
    __syncthreads();
    if (threadIdx.x > 0) return;
    int n = 0;
    float product = 1.0f;
    while (n < ROWS && (product *= confidences[n]) >= least) ++n;
    reach[sequence] = n;
}
