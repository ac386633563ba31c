// Rows of the pass before that are text now: what they add to the states of the SHARE heads of a block.
#pragma once

struct Kept {
    const int* rows;
    int n;
    const float *k, *u, *decay;  // of the slot's first pending row: the key; of the first head, and the block's first value row
    float *lines, *factors;      // shared memory for `room` rows: WIDTH + SHARE * OWN floats each, `stride` apart, and 4
    int stride, room;

    // Start to copy `room` rows, or what there is.
    __device__ __forceinline__ void fetch(int start) const {
        constexpr int COPIES = (WIDTH + SHARE * OWN) / 4;
        const int n_here = min(room, n - start);
#pragma unroll 1
        for (int i = threadIdx.x; i < n_here * COPIES; i += THREADS) {
            const int r = i / COPIES, c = i % COPIES * 4, y = c - WIDTH;
            const size_t row = rows[start + r];
            const float* const from = y < 0 ? k + row * GROUPS * WIDTH + c
                                            : u + (row * HEADS + y / OWN * GROUPS) * VALUES + y % OWN;
            copy_16(address(lines + r * stride + c), from);
        }
        copy_commit();
#pragma unroll 1
        for (int i = threadIdx.x; i < n_here * SHARE; i += THREADS) {
            factors[i / SHARE * 4 + i % SHARE] = decay[rows[start + i / SHARE] * HEADS + i % SHARE * GROUPS];
        }
    }

    // Apply all, of which the first `room` are being fetched.
    __device__ __forceinline__ void apply(State& own, int lane) const {
        for (int start = 0; start < n; start += room) {
            if (start) fetch(start);
            copy_wait<0>();
            __syncthreads();
            const float* line = lines;
#pragma unroll 1
            for (int i = 0; i < min(room, n - start); ++i, line += stride) {
                float key[COLUMNS], amount[SHARE], factor[SHARE];
                load_columns(line, lane, key);
#pragma unroll
                for (int h = 0; h < SHARE; ++h) {
                    amount[h] = line[WIDTH + h * OWN + threadIdx.x / LANES], factor[h] = factors[4 * i + h];
                }
                own.add(factor, amount, key);
            }
            __syncthreads();
        }
    }
};
