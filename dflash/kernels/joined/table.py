"""Columns of the tables that describe a launch: int64 addresses of arrays, and sizes.

A row describes a stage, that is an op. All its arrays are float32 and contiguous.
"""

EMBED, ANGLES, NORM, GATED_NORM, MULTIPLY, CONV, DELTA, ROTATE, ATTEND = range(9)
"""Kinds of stages."""

KIND, X, OUT, WIDTH = range(4)
"""Columns of all stages: the kind, input, output, and the width of a row or of a head."""

ROW_BYTES, STEPS, UNPACK = range(4, 7)
"""Further columns of an embedding: see `dflash.kernels.embed`."""

SIN = 4
"""Further column of a rotary table: the array of sines; the output are the cosines."""

WEIGHT, HEADS, GATE = range(4, 7)
"""Further columns of norms: gain, heads of a row, and the gate of a gated norm."""

FIRST, STOP = 4, 5
"""Further columns of a multiply: its rows in the table of plans."""

TAPS, TAIL, INPUTS, SLOTS, CONV_PENDING, N_TAPS = range(4, 10)
"""Further columns of a convolution: its weight, its memory with slots and pending rows, and the rows of the weight."""

FUNCTION = 4
"""Further column of the kinds from DELTA on: the C function ``(stage, task, batch)`` that runs a task."""

ALPHA, BETA, RATE, SHIFT, STATE, K, U, DECAY, DELTA_SLOTS, DELTA_PENDING = range(5, 15)
"""Further columns of the delta rule: its weights, its memory with slots and pending rows."""

GROUPS, VALUE_HEADS, VALUES, RUN, SIZE = range(15, 20)
"""Further columns of the delta rule: key heads, value heads, value size, value heads of a key head, value rows of a task."""

K_CACHE, V_CACHE, CACHE_PAGES, KV_HEADS, K_STORED, V_STORED, Q_HEADS = range(5, 12)
"""Further columns of rotation and attention: the caches, their pages, KV heads, stored elements of a head; query heads."""

KEY, VALUE, Q_NORM, K_NORM, BIAS, COS, SINES, PAIRS, QUERY_WIDTH, EPS = range(12, 22)
"""Further columns of rotation: projections, gains and bias (0 for none), tables, rotated pairs, width of the input, and
epsilon as float64."""

GATES, GATED = 12, 13
"""Further columns of attention: the projection with the gates, and 1 if there are any."""

COLUMNS = EPS + 1

(
    ROWS, SEQUENCES, N_PAGES, ROW_STARTS, SEQUENCE, PARENT, DEPTH, LENGTH, PAGES,
    SLOT, PREFILL, ACCEPTED, N_ACCEPTED, BUFFER,
) = range(14)  # fmt: skip
"""Columns of a batch: numbers of rows, sequences and pages of a sequence, and arrays of `dflash.kernels.ragged.Ragged`."""

BATCH_COLUMNS = BUFFER + 1
