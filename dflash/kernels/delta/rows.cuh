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

// What a thread needs of a row.
struct Row {
    float key[COLUMNS], query[COLUMNS], value[SHARE], kept[SHARE], strength[SHARE], product;

    __device__ __forceinline__ void load(const Shared& shared, int at, int lane) {
        load_columns(shared.rows + at * LOCAL + WIDTH, lane, key);
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

// The conv of one channel over N rows up from `last`, in place. The inputs also go to `remembered` unless that is null.
template <bool CHAIN, int N>
__device__ __forceinline__ void convolve(const float (&weight)[TAPS], float* column, int last, const Tree& tree,
                                         float* remembered) {
    float total[N];
#pragma unroll
    for (int r = 0; r < N; ++r) {
        const int row = last - r;
        const float input = column[row * LOCAL];
        total[r] = 0.0f;
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            const int up = CHAIN ? row - (TAPS - 1 - t) : tree.above[row][TAPS - 2 - t];
            total[r] = __fmaf_rn(weight[t], column[up * LOCAL], total[r]);
        }
        total[r] = __fmaf_rn(weight[TAPS - 1], input, total[r]);
        if (remembered) remembered[row * CHANNELS] = input;
    }
#pragma unroll
    for (int r = 0; r < N; ++r) column[(last - r) * LOCAL] = silu(total[r]);
}

// All n rows: from the last one up, so that all inputs are still there.
template <bool CHAIN>
__device__ __forceinline__ void convolve_rows(const float* taps, float* column, int n, const Tree& tree, float* remembered) {
    float weight[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) weight[t] = taps[t * LOCAL];
    int last = n - 1;
#pragma unroll 1
    for (; last >= TOGETHER - 1; last -= TOGETHER) convolve<CHAIN, TOGETHER>(weight, column, last, tree, remembered);
#pragma unroll 1
    for (; last >= 0; --last) convolve<CHAIN, 1>(weight, column, last, tree, remembered);
}

// The only row, all channels of a thread side by side. Inputs also go to where `remembers` says.
template <class Remembers>
__device__ __forceinline__ void convolve_one(const Shared& shared, const Remembers& remembers) {
    constexpr int EACH = (LOCAL + THREADS - 1) / THREADS;
    float total[EACH], input[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int x = min((int)threadIdx.x + i * THREADS, LOCAL - 1);
        total[i] = 0.0f, input[i] = shared.rows[x];
#pragma unroll
        for (int t = 0; t < TAPS - 1; ++t) {
            total[i] = __fmaf_rn(shared.taps[t * LOCAL + x], shared.rows[x - (TAPS - 1 - t) * LOCAL], total[i]);
        }
        total[i] = silu(__fmaf_rn(shared.taps[(TAPS - 1) * LOCAL + x], input[i], total[i]));
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        const int x = threadIdx.x + i * THREADS;
        if (x >= LOCAL) continue;
        shared.rows[x] = total[i];
        if (float* const to = remembers(x)) *to = input[i];
    }
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
