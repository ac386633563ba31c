// What a block of `step.cu` has in shared memory.
#pragma once

constexpr int LOCAL = 2 * WIDTH + OWN;  // channels of a block: those of q, of k, of its values

// Threads: those that have value rows, and as many more as it takes to convolve the channels in a round less than these would.
constexpr int ROUNDS = (LOCAL + VISITORS - 1) / VISITORS, FEWER_ROUNDS = ROUNDS > 1 ? ROUNDS - 1 : 1;
constexpr int WANTED = (LOCAL + FEWER_ROUNDS * 32 - 1) / (FEWER_ROUNDS * 32) * 32;
constexpr int THREADS = WANTED > VISITORS ? WANTED : VISITORS;

struct Shared {
    float *taps, *rows, *reads, *gates, *aside, *laws, *sums;

    __device__ __forceinline__ Shared(float* from, int room, int places) {
        taps = from;                                          // (TAPS, LOCAL), and the TAPS - 1 rows above the first one
        rows = taps + (2 * TAPS - 1) * LOCAL;                 // (room, LOCAL): q, k, v; later u in place of v
        reads = rows + room * LOCAL;                          // (room, OWN), as the one after it
        gates = reads + (FUSED ? room * OWN : 0);
        aside = gates + (FUSED ? room * OWN : 0);             // (places, OWN, WIDTH)
        laws = aside + places * OWN * WIDTH;                  // (room, 4): part kept, strength, q . k
        sums = laws + 4 * room;                               // (2, SPLIT, room)
    }
};
