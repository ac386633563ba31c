// Rows of the pass before that are text now: what they add to the state.
#pragma once

struct Kept {
    const int* rows;
    int n;
    const float *k, *u, *decay;  // of the slot's first pending row, this head and the block's first of OWN value rows
    float *lines, *factors;      // shared memory for `room` rows: WIDTH + OWN floats each, `stride` apart, and one
    int stride, room;

    // Start to copy `room` rows, or what there is.
    __device__ __forceinline__ void fetch(int start) const {
        constexpr int COPIES = (WIDTH + OWN) / 4;
        const int n_here = min(room, n - start);
#pragma unroll 1
        for (int i = threadIdx.x; i < n_here * COPIES; i += THREADS) {
            const int r = i / COPIES, c = i % COPIES * 4;
            const size_t row = rows[start + r];
            const float* const from = c < WIDTH ? k + row * GROUPS * WIDTH + c : u + row * HEADS * VALUES + c - WIDTH;
            copy_16(address(lines + r * stride + c), from);
        }
        copy_commit();
        if ((int)threadIdx.x < n_here) factors[threadIdx.x] = decay[rows[start + threadIdx.x] * HEADS];
    }

    // Apply all, of which the first `room` are being fetched, to the state of a thread that has some.
    __device__ __forceinline__ void apply(State& own, bool there, int lane) const {
        for (int start = 0; start < n; start += room) {
            if (start) fetch(start);
            copy_wait<0>();
            __syncthreads();
#pragma unroll 1
            for (int i = 0; there && i < min(room, n - start); ++i) {
                const float* const line = lines + i * stride;
                float key[COLUMNS];
                load_columns(line, lane, key);
                Amounts amount;
                amount.load(line + WIDTH + threadIdx.x / LANES * ROWS);
                own.add(factors[i], amount, key);
            }
            __syncthreads();
        }
    }
};
