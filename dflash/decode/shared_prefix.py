"""Length of the common prefix of sequences."""

from collections.abc import Sequence
from typing import Any


def n_shared(*sequences: Sequence[Any]) -> int:
    """Return the number of first items, such as token ids, that are equal in all sequences."""
    columns = enumerate(zip(*sequences, strict=False))
    return next((i for i, column in columns if any(each != column[0] for each in column)), min(map(len, sequences)))
