// Split-KV: the context before a pending row is split into at most MAX_SPLITS parts of equal size, a multiple of STEP positions.
// The size grows with the position of the row and depends on nothing else, so a row's bits do not depend on the batch. Rows of a
// sequence with splits of one size are a unit: they attend together. Macros: MAX_SPLITS.
#pragma once

#ifndef MAX_SPLITS
#error "MAX_SPLITS must be defined"
#endif

constexpr int STEP = 64;

// Size in steps of the splits of a row at `position`.
__device__ __forceinline__ int split_steps(int position) { return (position / STEP + MAX_SPLITS) / MAX_SPLITS; }

// Number of splits of a row at `position`.
__device__ __forceinline__ int n_splits_of(int position) {
    const int steps = split_steps(position);
    return (position / STEP + steps) / steps;
}

struct SplitUnit {
    int first, rows;      // within the sequence
    int steps, n_splits;  // size in steps and number of the splits of its last row
};

// The unit that begins at row `first` of the `rows` of a sequence, of at most `max_rows` rows.
__device__ __forceinline__ SplitUnit unit_at(int first, int rows, int max_rows, int length) {
    SplitUnit unit;
    unit.first = first;
    unit.steps = split_steps(length + first);
    const int larger = unit.steps * MAX_SPLITS * STEP - length;  // the first row with larger splits
    unit.rows = min(min(rows, larger) - first, max_rows);
    unit.n_splits = n_splits_of(length + first + unit.rows - 1);
    return unit;
}
