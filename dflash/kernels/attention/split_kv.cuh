// Split-KV (Flash-Decoding, Dao et al. 2023): the context of a pending row is divided into at most MAX_SPLITS splits of
// equal size, a multiple of STEP positions. The size depends on the position of the row only, so a row's bits do not depend
// on the batch. Rows of a sequence whose splits have the same size form a unit, which is processed together.
//
// Macro: MAX_SPLITS, capacity of splits of a row.
#pragma once

#ifndef MAX_SPLITS
#error "MAX_SPLITS must be defined"
#endif

constexpr int STEP = 64;  // positions

// Size in steps of the splits of a row at `position`.
__device__ __forceinline__ int split_steps(int position) { return (position / STEP + MAX_SPLITS) / MAX_SPLITS; }

// Number of splits of a row at `position`.
__device__ __forceinline__ int n_splits_of(int position) {
    const int steps = split_steps(position);
    return (position / STEP + steps) / steps;
}

struct SplitUnit {
    int first, rows;      // first row within the sequence; number of rows
    int steps, n_splits;  // size of its splits in steps; number of splits of its last row
};

// The unit of at most `max_rows` rows that begins at row `first` of the `rows` rows of a sequence.
__device__ __forceinline__ SplitUnit unit_at(int first, int rows, int max_rows, int length) {
    SplitUnit unit;
    unit.first = first;
    unit.steps = split_steps(length + first);
    const int larger = unit.steps * MAX_SPLITS * STEP - length;  // the first row with larger splits
    unit.rows = min(min(rows, larger) - first, max_rows);
    unit.n_splits = n_splits_of(length + first + unit.rows - 1);
    return unit;
}
