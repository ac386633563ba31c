"""Accepted rows that stay in the pending buffer, so that a pass of many sequences need not write the recurrent states."""

from collections.abc import Sequence

MOST_KEPT = 8
"""Steps after which a sequence of a large batch writes its state. Each step applies the kept rows.

Measured on an H200 with 8 to 128 sequences of a 27B: of 4 and 8 the better one for 64 and more, and equal for fewer.
"""

LEAST_SEQUENCES = 8
"""Fewest sequences of a pass that keeps rows: with fewer, states are written while the GPU waits for other launches."""


def first_row(accepted: Sequence[int], length: int, slot: int, sequences: int, pending: int) -> int:
    """Return the row of the same pending buffer at which the next pass of one row writes."""
    if not accepted or sequences < LEAST_SEQUENCES or len(accepted) >= MOST_KEPT or (length + slot) % MOST_KEPT == 0:
        return 0
    return (accepted[-1] + 1) % pending
