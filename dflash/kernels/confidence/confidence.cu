// Confidence head of a drafter: the number of draft positions until the product of their confidences falls below `least`. A confidence
// is sigmoid(weight . [norm(row); code] + bias).
//
// Grid sequences, block 32 * (BLOCK_ROWS - FIRST_DRAFT_ROW): a warp has a row. Macros: MODEL_DIM, elements of a row; RANK, of a code;
// BLOCK_ROWS, rows of a block; FIRST_DRAFT_ROW, rows that draft nothing. `stream`: rows before the last norm, whose gain is part of
// `weight`; `codes`: (BLOCK_ROWS, sequences, RANK) of the token before each row. Bytes: 8 * MODEL_DIM a row.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(MODEL_DIM) || !defined(RANK) || !defined(BLOCK_ROWS) || !defined(FIRST_DRAFT_ROW)
#error "MODEL_DIM, RANK, BLOCK_ROWS and FIRST_DRAFT_ROW must be defined"
#endif

constexpr int ROWS = BLOCK_ROWS - FIRST_DRAFT_ROW;

extern "C" __global__ void __launch_bounds__(32 * ROWS) confidence(const float* stream, const float* codes, const float* weight,
                                                                   float bias, float eps, float least, int texts, int* reach) {
    __shared__ float held[ROWS];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int text = blockIdx.x, t = FIRST_DRAFT_ROW + threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* row = stream + (size_t)(text * BLOCK_ROWS + t) * MODEL_DIM;
    const float* code = codes + (size_t)(t * texts + text) * RANK;
    float squares = 0.0f, sum = 0.0f, of_code = 0.0f;
    for (int i = lane; i < MODEL_DIM; i += 32) {
        squares = __fmaf_rn(row[i], row[i], squares);
        sum = __fmaf_rn(row[i], weight[i], sum);
    }
    for (int i = lane; i < RANK; i += 32) of_code = __fmaf_rn(code[i], weight[MODEL_DIM + i], of_code);
    squares = warp_sum(squares), sum = warp_sum(sum), of_code = warp_sum(of_code);
    if (lane == 0)
        held[t - FIRST_DRAFT_ROW] = 1.0f / (1.0f + expf(-(sum * rsqrtf(squares / MODEL_DIM + eps) + of_code + bias)));
    __syncthreads();
    if (threadIdx.x > 0) return;
    int n = 0;
    float product = 1.0f;
    while (n < ROWS && (product *= held[n]) >= least) ++n;
    reach[text] = n;
}
