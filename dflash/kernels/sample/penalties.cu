// Apply penalties and bias to rows of logits in place (`apply_penalties`; decode/sampling/processors.py has the definition),
// and undo them (`restore_logits`).
//
// Grid (rows), block THREADS, no shared memory. Macros: VOCAB, tokens of a row; THREADS. Bytes: 12 an entry.
// An entry is a token and a value: its count, or its bias. A row has three lists of entries: the tokens of its output, a
// list that rows may share; the tokens of its own draft path, which replace entries of the first list; and the bias. A token
// occurs at most once in a list. `saved`: the original logits, one for each entry of a row.
#include "../gpu/include/pdl.cuh"

#if !defined(VOCAB) || !defined(THREADS)
#error "VOCAB and THREADS must be defined"
#endif

struct Entry {
    int token;
    float value;
};

// Edits of a row: start and length of each list in `entries`, start in `saved`, and penalties. cuda_edits.py has the same
// layout.
struct Edit {
    int output, n_output, draft, n_draft, bias, n_bias, saved;
    float repetition, presence, frequency;
};

// Logit `x` after the penalties of a token that occurs `produced` times.
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
    const Edit edit = ((const Edit*)edits)[blockIdx.x];
    const Entry *output = (const Entry*)entries + edit.output, *draft = (const Entry*)entries + edit.draft,
                *bias = (const Entry*)entries + edit.bias;
    float* row = logits + (size_t)blockIdx.x * VOCAB;
    saved += edit.saved;
    for (int i = threadIdx.x; i < edit.n_draft; i += THREADS) saved[edit.n_output + i] = row[draft[i].token];
    __syncthreads();  // logits of the draft path are saved before output tokens are changed
    for (int i = threadIdx.x; i < edit.n_output; i += THREADS) {
        const float x = saved[i] = row[output[i].token];
        row[output[i].token] = penalized(x, output[i].value, edit);
    }
    __syncthreads();  // draft tokens replace the results of the first list
    for (int i = threadIdx.x; i < edit.n_draft; i += THREADS) {
        row[draft[i].token] = penalized(saved[edit.n_output + i], draft[i].value, edit);
    }
    __syncthreads();  // bias is added after all penalties
    for (int i = threadIdx.x; i < edit.n_bias; i += THREADS) {
        const float x = saved[edit.n_output + edit.n_draft + i] = row[bias[i].token];
        row[bias[i].token] = __fadd_rn(x, bias[i].value);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
restore_logits(float* logits, const int* edits, const int* entries, const float* saved) {
    launch_dependent_grids();
    wait_on_dependent_grids();
    const Edit edit = ((const Edit*)edits)[blockIdx.x];
    float* row = logits + (size_t)blockIdx.x * VOCAB;
    saved += edit.saved;
    const Entry* at = (const Entry*)entries;
    for (int i = threadIdx.x; i < edit.n_bias; i += THREADS) {
        row[at[edit.bias + i].token] = saved[edit.n_output + edit.n_draft + i];
    }
    __syncthreads();  // bias was added last, so it is undone first
    for (int i = threadIdx.x; i < edit.n_output; i += THREADS) row[at[edit.output + i].token] = saved[i];
    for (int i = threadIdx.x; i < edit.n_draft; i += THREADS) row[at[edit.draft + i].token] = saved[edit.n_output + i];
}
