"""Group the spans of a forward into passes."""

from collections.abc import Sequence

from dflash.errors import KernelError
from dflash.kernels.ragged import PENDING
from dflash.model.batch import Span


def grouped(spans: Sequence[Span], chunk: int, prompts: int, rows: int = PENDING) -> list[list[int]]:
    """Return the indices of the spans of each pass.

    Passes of pending spans come first, at most 64 rows each, or `rows` if every pending span has one row; then passes of
    prefill spans, at most `chunk` rows of `prompts` sequences each.
    """
    groups: list[list[int]] = []
    pending = rows if all(span.prefill or len(span.tokens) == 1 for span in spans) else PENDING
    for whole, room, most in ((False, pending, pending), (True, chunk, prompts)):
        used = room
        for i, span in enumerate(spans):
            n = len(span.tokens)
            if span.prefill != whole:
                continue
            if n > room:
                raise KernelError(f"forward: {n} rows of one text, at most {room} fit")
            if used + n > room or len(groups[-1]) == most:
                groups.append([])
                used = 0
            groups[-1].append(i)
            used += n
    return groups
