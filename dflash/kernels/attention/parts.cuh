// Where the text before a pending row is cut: in at most SPLITS parts of equal size, a multiple of STEP positions that grows
// with the place of the row and depends on nothing else. Rows that attend together are a unit: of one sequence, with parts of
// one size.
#pragma once

#ifndef SPLITS
#error "SPLITS must be defined"
#endif

constexpr int STEP = 64;

// Size in steps of the parts of the text up to a row at `place`.
__device__ __forceinline__ int part_steps(int place) { return (place / STEP + SPLITS) / SPLITS; }

// How many parts there are.
__device__ __forceinline__ int parts_of(int place) {
    const int steps = part_steps(place);
    return (place / STEP + steps) / steps;
}

struct Unit {
    int first, rows;   // within the sequence
    int steps, parts;  // of the text up to its last row
};

// The unit that begins at row `first` of the `rows` of a sequence, at most `most` rows long.
__device__ __forceinline__ Unit unit_at(int first, int rows, int most, int length) {
    Unit unit;
    unit.first = first;
    unit.steps = part_steps(length + first);
    const int larger = unit.steps * SPLITS * STEP - length;  // the first row whose parts are
    unit.rows = min(min(rows, larger) - first, most);
    unit.parts = parts_of(length + first + unit.rows - 1);
    return unit;
}
