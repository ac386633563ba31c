// The warps of a block of `step.cu`, and what it has in shared memory.
#pragma once

constexpr int LOCAL = 2 * WIDTH + OWN;  // channels of a block: those of q, of k, of its values

// Visitors have value rows, ROWS of a thread and LANES threads for each; makers have none.
constexpr int MAKERS = ROWS == 2 ? 4 : 2, THREADS = VISITORS + 32 * MAKERS, WARPS = THREADS / 32;

struct Shared {
    float *taps, *inputs, *rows, *reads, *gates, *aside, *laws, *kept, *factors;

    __device__ __forceinline__ Shared(float* from, int room, int places) {
        taps = from;                                 // (TAPS, LOCAL), then the TAPS - 1 inputs above the first row
        inputs = taps + (2 * TAPS - 1) * LOCAL;      // (room, LOCAL) before the conv, if STAGED
        rows = inputs + STAGED * room * LOCAL;       // (room, LOCAL) in the order of visits: q, k, v; later u in place of v
        reads = rows + room * LOCAL;                 // (room, OWN) in the order of visits, as the next and `laws`
        gates = reads + room * OWN;
        aside = gates + (FUSED ? room * OWN : 0);    // (places, OWN, WIDTH)
        laws = aside + places * OWN * WIDTH;         // (room, 4): part kept, strength, q . k, flags
        kept = laws + 4 * room;                      // (KEPT_ROOM, WIDTH + OWN)
        factors = kept + KEPT_ROOM * (WIDTH + OWN);  // KEPT_ROOM
    }
};
