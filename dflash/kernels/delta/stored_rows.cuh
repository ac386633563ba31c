// Rows that a slot of a layer stores of a pass until the next pass has applied the accepted ones: in two buffers of
// STORED_ROWS rows, of which a pass reads one and writes the other, see SequenceInfo in params.cuh. Row r of a slot in buffer b
// is row (b * slots + slot) * STORED_ROWS + r of the arrays.
//
// Macros: those of shape.cuh; STORED_ROWS, 1 to PENDING, the most pending rows of a sequence.
#pragma once
#include "shape.cuh"

#ifndef STORED_ROWS
#error "STORED_ROWS must be defined"
#endif
static_assert(STORED_ROWS >= 1 && STORED_ROWS <= PENDING, "a batch names up to PENDING accepted rows of a sequence");
