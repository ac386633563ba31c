"""States that the prefix cache saves inside of a chunk of a prompt, so that the chunk need not end there."""

from collections.abc import Iterator

from dflash.decode.session import Session
from dflash.decode.step import Step
from dflash.errors import OutOfMemory
from dflash.kernels.delta.state_copies import StateCopy
from dflash.model.batch import Forward, Span


def copies_inside(session: Session, n: int, most: int) -> tuple[int, tuple[StateCopy, ...]]:
    """Return how many of the next `n` prompt tokens to prefill, and the copies of the state inside of them, at most `most`.

    The chunk ends at a length that is to be saved if there is no copy or no memory left for it.
    """
    assert session.state is not None, "the session runs"
    copies = list[StateCopy]()
    for rows in (length - session.n_prefilled for length in session.snapshot_at):
        if not 0 < rows < n:
            continue
        if len(copies) == most:
            return rows, tuple(copies)
        try:
            copies.append(session.state.copy_after(rows))
        except OutOfMemory:
            return rows, tuple(copies)
    return n, tuple(copies)


def observe_prompt(session: Session, span: Span, step: Step, out: Forward, *, first: int) -> Iterator[StateCopy]:
    """Count the rows of a span, from `first` on in `out`, as prefilled, and pass them to the drafter.

    Yields: each copy inside of the span, once the drafter has observed the rows before it and none after it.
    """
    assert session.drafter_state is not None, "the session runs"
    ends, begin = {copy.rows: copy for copy in span.copies}, 0
    for end in (*ends, len(span.tokens)):
        session.n_prefilled += end - begin
        session.drafter_state.observe(step._replace(prefilled=end - begin), out, slice(first + begin, first + end))
        if end in ends:
            yield ends[end]
        begin = end
