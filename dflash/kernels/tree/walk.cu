// Follow the drawn tokens of each sequence through its guesses, and lay out what a draft does next: the rows on the way become
// its context, and its next block begins at the token after them. reference.py says what a way is.
//
// A warp has a sequence; grid 1, block 32 * sequences. Macros: BLOCK, rows of a draft's block; PLACES, those of a ring;
// MASK, the token of the guessed rows. The first part of the arguments is the batch of the pass; `begin` is where the context
// of each sequence begins. context_length is the place of a sequence's first new row in its ring; no key is older than
// `first_seen`, since rows beyond the text may have overwritten it.
// Bytes: some KiB.
#if !defined(BLOCK) || !defined(PLACES) || !defined(MASK)
#error "BLOCK, PLACES and MASK must be defined"
#endif

constexpr int PENDING = 64, SEQUENCES = 16;

extern "C" __global__ void __launch_bounds__(32 * SEQUENCES)
walk(const int* counts, const int* first, const int* length, const int* tokens, const int* parent, const int* drawn,
     const int* begin, int* context_counts, int* context_first, int* context_sequence, int* context_length,
     int* context_position, int* context_row, int* block_tokens, int* block_position, int* block_length, int* first_seen,
     int* anchors, int* lengths) {
    __shared__ int paths[SEQUENCES][PENDING], sizes[SEQUENCES];
    const int s = threadIdx.x / 32, lane = threadIdx.x % 32, n_sequences = counts[1];
    const bool works = s < n_sequences;
    int anchor = 0, size = 0;
    if (works) {
        const int start = first[s], n = first[s + 1] - start;
        int row = 0;
        while (row >= 0) {
            if (lane == 0) paths[s][size] = row;
            ++size;
            anchor = drawn[start + row];
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
    const int old = length[s], now = old + size;
    for (int i = lane; i < size; i += 32) {
        context_sequence[at + i] = s;
        context_position[at + i] = old + i;
        context_row[at + i] = first[s] + paths[s][i];
    }
    for (int i = lane; i < BLOCK; i += 32) {
        block_tokens[s * BLOCK + i] = i ? MASK : max(anchor, 0);
        block_position[s * BLOCK + i] = now + i;
    }
    if (lane) return;
    context_first[s] = at;
    context_length[s] = old % PLACES;
    block_length[s] = now;
    first_seen[s] = max(begin[s], now + PENDING - PLACES);
    anchors[s] = anchor, lengths[s] = now;
    if (s == n_sequences - 1) context_first[s + 1] = context_counts[0] = at + size, context_counts[1] = n_sequences;
}
