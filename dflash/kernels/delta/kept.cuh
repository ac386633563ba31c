// Rows of the pass before that are text now: what they add to the states of the SHARE heads of a block.
#pragma once

__device__ __forceinline__ void copy_4(u32 shared, const void* global) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(global) : "memory");
}

struct Kept {
    const int* rows;
    int n;
    const float *k, *u, *decay;  // of the slot's first pending row: the key; of the first head, and the block's first value row
    float *lines, *factors;      // shared memory for `room` rows: WIDTH + SHARE * OWN floats each, `stride` apart, and 4
    int stride, room;

    // Start to copy `room` rows, or what there is.
    __device__ __forceinline__ void fetch(int start) const {
        constexpr int COPIES = (WIDTH + SHARE * OWN) / 4;
        const int n_here = min(room, n - start), lane = threadIdx.x % 32;
#pragma unroll 2
        for (int r = threadIdx.x / 32; r < n_here; r += THREADS / 32) {
            const size_t row = rows[start + r];
#pragma unroll
            for (int i = 0; i < COPIES; i += 32) {
                const int c = (i + lane) * 4, y = c - WIDTH;
                const float* const from = y < 0 ? k + row * GROUPS * WIDTH + c
                                                : u + (row * HEADS + y / OWN * GROUPS) * VALUES + y % OWN;
                if (i + lane < COPIES) copy_16(address(lines + r * stride + c), from);
            }
            if (lane < SHARE) copy_4(address(factors + r * 4 + lane), decay + row * HEADS + lane * GROUPS);
        }
        copy_commit();
    }

    // Apply all, of which the first `room` are being fetched.
    __device__ __forceinline__ void apply(State& own, int lane) const {
        for (int start = 0; start < n; start += room) {
            if (start) fetch(start);
            copy_wait<0>();
            __syncthreads();
            const float* line = lines;
#pragma unroll 2
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
