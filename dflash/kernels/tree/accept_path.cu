// Follow the sampled tokens of some sequences through their draft trees, and lay out the drafter's next batch: the accepted rows become
// context, and the draft continues after the last sampled token. See reference.py for the accepted path.
//
// A warp has one of the n_sequences; `low`, `high`, see slot_order.cuh, give its sequence of the batch. Grid 1, block 32 * SEQUENCES.
// Macros: ROWS, draft positions of a sequence; RING_SIZE, positions of a ring; MASK_TOKEN, token of draft rows; BLOCKS, whether the
// next rows are blocks, whose first row is the last sampled token. If not, next_position has SEQUENCES for each of the ROWS; the
// other arrays of blocks are not written.
// The first arguments are the batch of the pass; `begin` is where the context of each sequence begins. context_length is the ring
// position of a sequence's first new row; nothing before `first_seen` may be read, since later rows may have overwritten it.
// context_token is the token after each row, context_last the last row of each sequence. Bytes: some KiB.
#if !defined(ROWS) || !defined(RING_SIZE) || !defined(MASK_TOKEN) || !defined(BLOCKS)
#error "ROWS, RING_SIZE, MASK_TOKEN and BLOCKS must be defined"
#endif

#include "slot_order.cuh"

constexpr int PENDING = 64, SEQUENCES = 16;

extern "C" __global__ void __launch_bounds__(32 * SEQUENCES)
accept_path(int n_sequences, unsigned long long low, unsigned long long high, const int* first, const int* length,
            const int* tokens, const int* parent, const int* drawn, int* context_counts, int* context_first,
            int* context_sequence, int* context_length, int* context_position, int* context_row, int* context_token,
            int* context_parent, int* context_depth, int* context_last, const int* begin, int* next_tokens,
            int* next_position, int* next_length, int* first_seen, int* anchors, int* lengths) {
    __shared__ int paths[SEQUENCES][PENDING], after[SEQUENCES][PENDING], sizes[SEQUENCES];
    const int s = threadIdx.x / 32, lane = threadIdx.x % 32, own = which(s, low, high);
    const bool works = s < n_sequences;
    const int start = works ? first[own] : 0, old = works ? length[own] : 0;
    int anchor = 0, size = 0;
    if (works) {
        const int n = first[own + 1] - start;
        int row = 0;
        while (row >= 0) {
            anchor = drawn[start + row];
            if (lane == 0) paths[s][size] = row, after[s][size] = anchor;
            ++size;
            unsigned found[2];
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int r = 32 * i + lane;
                found[i] = __ballot_sync(~0u, r > row && r < n && parent[start + r] == row && tokens[start + r] == anchor);
            }
            row = found[0] ? __ffs(found[0]) - 1 : found[1] ? 31 + __ffs(found[1]) : -1;
        }
        if (lane == 0) sizes[s] = size;
    }
    __syncthreads();
    if (!works) return;
    int at = 0;
    for (int i = 0; i < s; ++i) at += sizes[i];
    const int now = old + size;
    for (int i = lane; i < size; i += 32) {
        context_sequence[at + i] = s;
        context_position[at + i] = old + i;
        context_row[at + i] = start + paths[s][i];
        context_token[at + i] = after[s][i];
        context_parent[at + i] = i - 1;
        context_depth[at + i] = i;
    }
    for (int i = lane; i < ROWS; i += 32) {
        next_position[BLOCKS ? s * ROWS + i : i * SEQUENCES + s] = now + i;
        if (BLOCKS) next_tokens[s * ROWS + i] = i ? MASK_TOKEN : max(anchor, 0);
    }
    if (lane) return;
    context_first[s] = at;
    context_length[s] = old % RING_SIZE;
    context_last[s] = at + size - 1;
    if (BLOCKS) next_length[s] = now, first_seen[s] = max(begin[s], now + PENDING - RING_SIZE);
    anchors[s] = anchor, lengths[s] = now;
    if (s == n_sequences - 1) context_first[s + 1] = context_counts[0] = at + size, context_counts[1] = n_sequences;
}
