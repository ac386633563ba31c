// Apply penalties and bias to rows of logits in place, see decode/sampling/processors.py (`apply_penalties`); undo it (`restore_logits`).
//
// Grid rows, block THREADS. An entry is a token and a number: its count, or the bias. A row has three lists of entries: those of its
// output, which rows may share; those of its own draft, which override them; and the bias. A token occurs once in a list.
// saved: the original logits, one for each entry of a row. Macros: VOCAB, THREADS. Bytes: 12 an entry.
#include "../gpu/include/pdl.cuh"

#if !defined(VOCAB) || !defined(THREADS)
#error "VOCAB and THREADS must be defined"
#endif

struct Entry {
    int token;
    float number;
};

// `EDIT` in cuda_edits.py is the same.
struct Edit {
    int text, n_text, draft, n_draft, bias, n_bias, saved;
    float repetition, presence, frequency;
};

__device__ __forceinline__ float penalized(float x, float produced, const Edit& edit) {
    if (edit.repetition != 1.0f) x = x > 0.0f ? __fdiv_rn(x, edit.repetition) : __fmul_rn(x, edit.repetition);
    if (edit.presence != 0.0f || edit.frequency != 0.0f) {
        x = __fsub_rn(x, __fmul_rn(edit.frequency, produced));
        x = __fsub_rn(x, produced > 0.0f ? edit.presence : 0.0f);
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS)
apply_penalties(float* logits, const int* edits, const int* entries, float* saved) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const Edit own = ((const Edit*)edits)[blockIdx.x];
    const Entry *text = (const Entry*)entries + own.text, *draft = (const Entry*)entries + own.draft,
                *bias = (const Entry*)entries + own.bias;
    float* row = logits + (size_t)blockIdx.x * VOCAB;
    saved += own.saved;
    for (int i = threadIdx.x; i < own.n_draft; i += THREADS) saved[own.n_text + i] = row[draft[i].token];
    __syncthreads();
    for (int i = threadIdx.x; i < own.n_text; i += THREADS) {
        const float x = saved[i] = row[text[i].token];
        row[text[i].token] = penalized(x, text[i].number, own);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < own.n_draft; i += THREADS) {
        row[draft[i].token] = penalized(saved[own.n_text + i], draft[i].number, own);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < own.n_bias; i += THREADS) {
        const float x = saved[own.n_text + own.n_draft + i] = row[bias[i].token];
        row[bias[i].token] = __fadd_rn(x, bias[i].number);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
restore_logits(float* logits, const int* edits, const int* entries, const float* saved) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const Edit own = ((const Edit*)edits)[blockIdx.x];
    float* row = logits + (size_t)blockIdx.x * VOCAB;
    saved += own.saved;
    const Entry* at = (const Entry*)entries;
    for (int i = threadIdx.x; i < own.n_bias; i += THREADS) {
        row[at[own.bias + i].token] = saved[own.n_text + own.n_draft + i];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < own.n_text; i += THREADS) row[at[own.text + i].token] = saved[i];
    for (int i = threadIdx.x; i < own.n_draft; i += THREADS) row[at[own.draft + i].token] = saved[own.n_text + i];
}
