// How far each text is guessed: positions until the product of their confidences falls below `least`, a confidence being
// sigmoid(weight . [norm(row); code] + bias).
//
// Grid texts, block 32 * (EACH - LEAD): a warp has a row. Macros: DIM, values of a row; RANK, of a code; EACH, rows of a block;
// LEAD, those that guess nothing. stream: rows before the last norm, whose gain is in `weight`; codes: (EACH, texts, RANK) of the
// token before each row. Bytes: 8 * DIM a row.
#include "../gpu/include/pdl.cuh"
#include "../gpu/include/warp.cuh"

#if !defined(DIM) || !defined(RANK) || !defined(EACH) || !defined(LEAD)
#error "DIM, RANK, EACH and LEAD must be defined"
#endif

constexpr int ROWS = EACH - LEAD;

extern "C" __global__ void __launch_bounds__(32 * ROWS)
trust(const float* stream, const float* codes, const float* weight, float bias, float eps, float least, int texts, int* reach) {
    __shared__ float held[ROWS];
    launch_dependent_grids();
    wait_on_dependent_grids();
    const int text = blockIdx.x, t = LEAD + threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* row = stream + (size_t)(text * EACH + t) * DIM;
    const float* code = codes + (size_t)(t * texts + text) * RANK;
    float squares = 0.0f, sum = 0.0f, of_code = 0.0f;
    for (int i = lane; i < DIM; i += 32) {
        squares = __fmaf_rn(row[i], row[i], squares);
        sum = __fmaf_rn(row[i], weight[i], sum);
    }
    for (int i = lane; i < RANK; i += 32) of_code = __fmaf_rn(code[i], weight[DIM + i], of_code);
    squares = warp_sum(squares), sum = warp_sum(sum), of_code = warp_sum(of_code);
    if (lane == 0) held[t - LEAD] = 1.0f / (1.0f + expf(-(sum * rsqrtf(squares / DIM + eps) + of_code + bias)));
    __syncthreads();
    if (threadIdx.x > 0) return;
    int n = 0;
    float product = 1.0f;
    while (n < ROWS && (product *= held[n]) >= least) ++n;
    reach[text] = n;
}
