// The rows of a block in shared memory, from the projections to what the delta rule reads: conv, SiLU, unit queries and keys.
#pragma once

constexpr int BLOCK_ROWS = SHARE * OWN, LOCAL = 2 * WIDTH + BLOCK_ROWS;  // channels of a block: those of q, of k, of its values
constexpr int LAW = (2 * SHARE + 4) / 4 * 4, PRODUCT = 2 * SHARE;
constexpr int WARPS = THREADS / 32, TOGETHER = 4;

struct Shared {
    float *taps, *rows, *reads, *gates, *aside, *laws, *sums;

    __device__ __forceinline__ Shared(float* from, int room, int places) {
        taps = from;                                          // (TAPS, LOCAL), and the TAPS - 1 rows above the first one
        rows = taps + (2 * TAPS - 1) * LOCAL;                 // (room, LOCAL): q, k, v; of a tree, later u in place of v
        reads = rows + room * LOCAL;                          // (room, SHARE, OWN), as the one after it
        gates = reads + (FUSED ? room * BLOCK_ROWS : 0);
        aside = gates + (FUSED ? room * BLOCK_ROWS : 0);      // (places, SHARE, OWN, WIDTH)
        laws = aside + places * BLOCK_ROWS * WIDTH;           // (room, LAW): part kept and strength of each head, q . k
        sums = laws + room * LAW;                             // (2, SPLIT, room, SHARE)
    }
    __device__ __forceinline__ float& value_of(int row, int head, int value) const {
        return rows[row * LOCAL + 2 * WIDTH + head * OWN + value];
    }
};

__device__ __forceinline__ void load_key(const Shared& shared, int at, int lane, float (&key)[COLUMNS]) {
    load_columns(shared.rows + at * LOCAL + WIDTH, lane, key);
}

// What a thread needs of a row beside its key.
struct Row {
    float query[COLUMNS], value[SHARE], kept[SHARE], strength[SHARE], product;

    __device__ __forceinline__ void load(const Shared& shared, int at, int lane) {
        load_columns(shared.rows + at * LOCAL, lane, query);
        float law[LAW];
#pragma unroll
        for (int i = 0; i < LAW; i += 4) {
            const float4 x = *(const float4*)(shared.laws + at * LAW + i);
            law[i] = x.x, law[i + 1] = x.y, law[i + 2] = x.z, law[i + 3] = x.w;
        }
#pragma unroll
        for (int h = 0; h < SHARE; ++h) {
            value[h] = shared.value_of(at, h, threadIdx.x / LANES), kept[h] = law[2 * h], strength[h] = law[2 * h + 1];
        }
        product = law[PRODUCT];
    }
};

// The channels of a thread: taps, place in a row, and where inputs are remembered, if they are. There may be one too few.
struct Channels {
    static constexpr int MOST = (LOCAL + THREADS - 1) / THREADS;
    float weight[MOST][TAPS];
    float *column[MOST], *remembered[MOST];
    bool last_is_there;

    template <class Remembers>
    __device__ __forceinline__ Channels(const Shared& shared, const Remembers& remembers) {
        last_is_there = threadIdx.x + (MOST - 1) * THREADS < LOCAL;
#pragma unroll
        for (int c = 0; c < MOST; ++c) {
            const int x = is_there(c) ? threadIdx.x + c * THREADS : threadIdx.x;
            column[c] = shared.rows + x, remembered[c] = remembers(x);
#pragma unroll
            for (int t = 0; t < TAPS; ++t) weight[c][t] = shared.taps[t * LOCAL + x];
        }
    }
    __device__ __forceinline__ bool is_there(int c) const { return c < MOST - 1 || last_is_there; }
};

// The conv over N rows up from `last`, in place.
template <bool CHAIN, int N>
__device__ __forceinline__ void convolve(const Channels& channels, int last, const Tree& tree) {
    constexpr int ABOVE = TAPS - 1;
    float total[Channels::MOST][N];
#pragma unroll
    for (int c = 0; c < Channels::MOST; ++c) {
        const float* const column = channels.column[c];
        float own[N], above[N][ABOVE];
        if constexpr (CHAIN) {
            float input[N + ABOVE];
#pragma unroll
            for (int i = 0; i < N + ABOVE; ++i) input[i] = column[(last - N + 1 - ABOVE + i) * LOCAL];
#pragma unroll
            for (int r = 0; r < N; ++r) {
                own[r] = input[N - 1 - r + ABOVE];
#pragma unroll
                for (int t = 0; t < ABOVE; ++t) above[r][t] = input[N - 1 - r + t];
            }
        } else {
#pragma unroll
            for (int r = 0; r < N; ++r) {
                own[r] = column[(last - r) * LOCAL];
#pragma unroll
                for (int t = 0; t < ABOVE; ++t) above[r][t] = column[tree.above[last - r][ABOVE - 1 - t] * LOCAL];
            }
        }
#pragma unroll
        for (int r = 0; r < N; ++r) {
            float sum = 0.0f;
#pragma unroll
            for (int t = 0; t < ABOVE; ++t) sum = __fmaf_rn(channels.weight[c][t], above[r][t], sum);
            total[c][r] = silu(__fmaf_rn(channels.weight[c][ABOVE], own[r], sum));
            float* const remembered = channels.remembered[c];
            if (remembered && channels.is_there(c)) remembered[(size_t)(last - r) * CHANNELS] = own[r];
        }
    }
#pragma unroll
    for (int c = 0; c < Channels::MOST; ++c)
#pragma unroll
        for (int r = 0; r < N; ++r) {
            if (channels.is_there(c)) channels.column[c][(last - r) * LOCAL] = total[c][r];
        }
}

// All n rows: from the last one up, so that all inputs are still there.
template <bool CHAIN>
__device__ __forceinline__ void convolve_rows(const Channels& channels, int n, const Tree& tree) {
    int last = n - 1;
#pragma unroll 1
    for (; last >= TOGETHER - 1; last -= TOGETHER) convolve<CHAIN, TOGETHER>(channels, last, tree);
#pragma unroll 1
    for (; last >= 0; --last) convolve<CHAIN, 1>(channels, last, tree);
}

// Unit keys, and unit queries times WIDTH^-0.5, of rows `row`, `row + WARPS`, ... MANY in all, if they exist, by one warp. The
// keys also go to `remembered` unless that is null.
template <int MANY>
__device__ __forceinline__ void normalize(const Shared& shared, int row, int n, float* remembered) {
    constexpr int EACH = (WIDTH + 31) / 32;
    const int lane = threadIdx.x % 32;
    float q[MANY][EACH], k[MANY][EACH], qq[MANY], kk[MANY], qk[MANY];
#pragma unroll
    for (int r = 0; r < MANY; ++r) {
        const float* const line = shared.rows + (row + r * WARPS < n ? row + r * WARPS : row) * LOCAL + lane;
        qq[r] = kk[r] = qk[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            const bool there = WIDTH % 32 == 0 || i * 32 + lane < WIDTH;
            q[r][i] = there ? line[i * 32] : 0.0f, k[r][i] = there ? line[WIDTH + i * 32] : 0.0f;
            qq[r] = __fmaf_rn(q[r][i], q[r][i], qq[r]), kk[r] = __fmaf_rn(k[r][i], k[r][i], kk[r]);
            qk[r] = __fmaf_rn(q[r][i], k[r][i], qk[r]);
        }
    }
#pragma unroll
    for (int i = 16; i; i /= 2)
#pragma unroll
        for (int r = 0; r < MANY; ++r) {
            qq[r] = __fadd_rn(qq[r], __shfl_xor_sync(~0u, qq[r], i));
            kk[r] = __fadd_rn(kk[r], __shfl_xor_sync(~0u, kk[r], i));
            qk[r] = __fadd_rn(qk[r], __shfl_xor_sync(~0u, qk[r], i));
        }
#pragma unroll
    for (int r = 0; r < MANY; ++r) {
        const int at = row + r * WARPS;
        if (at >= n) continue;
        const float of_q = __fmul_rn(rsqrtf((float)WIDTH), rsqrtf(qq[r] + 1e-6f)), of_k = rsqrtf(kk[r] + 1e-6f);
        float* const line = shared.rows + at * LOCAL + lane;
#pragma unroll
        for (int i = 0; i < EACH; ++i) {
            if (WIDTH % 32 != 0 && i * 32 + lane >= WIDTH) continue;
            const float key = __fmul_rn(k[r][i], of_k);
            line[i * 32] = __fmul_rn(q[r][i], of_q), line[WIDTH + i * 32] = key;
            if (remembered) remembered[at * GROUPS * WIDTH + i * 32 + lane] = key;
        }
        if (lane == 0) shared.laws[at * LAW + PRODUCT] = __fmul_rn(__fmul_rn(qk[r], of_q), of_k);
    }
}
