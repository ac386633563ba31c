// Follow the sampled tokens of sequences through their draft trees and prepare the drafter's next batch: the accepted rows
// become context rows, and drafting continues after the last sampled token. reference.py defines the accepted path.
//
// A warp handles one of the n_sequences sequences; slot_order.cuh explains `low` and `high`. `taken_low` and `taken_high` hold
// how many tokens of each draft, a chain, are accepted whatever is sampled, or BY_SAMPLES. Grid 1, block 32 * SEQUENCES,
// shared memory 8 KiB (static). Bytes: a few KiB.
// Macros: ROWS, draft positions of a sequence; RING_SIZE, positions of a ring buffer; MASK_TOKEN, token of draft rows;
// BLOCKS, 1 if the next rows are blocks, whose first row holds the last sampled token. With BLOCKS 0, next_position is
// (ROWS, SEQUENCES), and the other arrays of blocks are not written.
//
// Inputs: the batch of the pass; `begin`, first context position of each sequence. Outputs: context_length, ring position of
// a sequence's first new row; first_seen, first position that may be read (later rows may have overwritten earlier
// positions); context_token, token after each row; context_last, last row of each sequence.
#if !defined(ROWS) || !defined(RING_SIZE) || !defined(MASK_TOKEN) || !defined(BLOCKS)
#error "ROWS, RING_SIZE, MASK_TOKEN and BLOCKS must be defined"
#endif

#include "../gpu/include/types.cuh"
#include "slot_order.cuh"

constexpr int PENDING = 64, SEQUENCES = 16, BY_SAMPLES = 255;

extern "C" __global__ void __launch_bounds__(32 * SEQUENCES)
accept_path(int n_sequences, unsigned long long low, unsigned long long high, unsigned long long taken_low,
            unsigned long long taken_high, const int* first, const int* length,
            const int* tokens, const int* parent, const int* drawn, int* context_counts, int* context_first,
            int* context_sequence, int* context_length, int* context_position, int* context_row, int* context_token,
            int* context_parent, int* context_depth, int* context_last, const int* begin, int* next_tokens,
            int* next_position, int* next_length, int* first_seen, int* anchors, int* lengths) {
    __shared__ int paths[SEQUENCES][PENDING], after[SEQUENCES][PENDING], sizes[SEQUENCES];
    const int s = threadIdx.x / 32, lane = threadIdx.x % 32, batch_index = batch_sequence(s, low, high);
    const bool active = s < n_sequences;
    const int start = active ? first[batch_index] : 0, old_length = active ? length[batch_index] : 0;
    int anchor = 0, size = 0;
    if (active) {
        const int n = first[batch_index + 1] - start, taken = batch_sequence(s, taken_low, taken_high);
        int row = 0;
        while (row >= 0) {
            anchor = taken != BY_SAMPLES && row < taken ? tokens[start + row + 1] : drawn[start + row];
            if (lane == 0) paths[s][size] = row, after[s][size] = anchor;
            ++size;
            if (taken != BY_SAMPLES) {
                row = row < taken ? row + 1 : -1;
                continue;
            }
            unsigned found[2];
            UNROLL for (int i = 0; i < 2; ++i) {
                const int r = 32 * i + lane;
                found[i] = __ballot_sync(~0u, r > row && r < n && parent[start + r] == row && tokens[start + r] == anchor);
            }
            row = found[0] ? __ffs(found[0]) - 1 : found[1] ? 31 + __ffs(found[1]) : -1;
        }
        if (lane == 0) sizes[s] = size;
    }
    __syncthreads();  // `paths`, `after` and `sizes` are complete
    if (!active) return;
    int at = 0;
    for (int i = 0; i < s; ++i) at += sizes[i];
    const int new_length = old_length + size;
    for (int i = lane; i < size; i += 32) {
        context_sequence[at + i] = s;
        context_position[at + i] = old_length + i;
        context_row[at + i] = start + paths[s][i];
        context_token[at + i] = after[s][i];
        context_parent[at + i] = i - 1;
        context_depth[at + i] = i;
    }
    for (int i = lane; i < ROWS; i += 32) {
        next_position[BLOCKS ? s * ROWS + i : i * SEQUENCES + s] = new_length + i;
        if (BLOCKS) next_tokens[s * ROWS + i] = i ? MASK_TOKEN : max(anchor, 0);
    }
    if (lane) return;
    context_first[s] = at;
    context_length[s] = old_length % RING_SIZE;
    context_last[s] = at + size - 1;
    if (BLOCKS) next_length[s] = new_length, first_seen[s] = max(begin[s], new_length + PENDING - RING_SIZE);
    anchors[s] = anchor, lengths[s] = new_length;
    if (s == n_sequences - 1) context_first[s + 1] = context_counts[0] = at + size, context_counts[1] = n_sequences;
}
