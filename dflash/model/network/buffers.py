"""Lifetimes of buffers, and their places in one arena."""

from collections.abc import Callable, Sequence

from dflash.model.network.ops import Buffer, Op


def lifetimes(ops: Sequence[Op]) -> dict[Buffer, tuple[int, int]]:
    """Return the first and the last op that uses each buffer; kept buffers are used by all."""
    found: dict[Buffer, tuple[int, int]] = {}
    for i, op in enumerate(ops):
        for buffer in op.buffers():
            found[buffer] = (0, len(ops)) if buffer.kept else (found.get(buffer, (i, i))[0], i)
    return found


def place(ops: Sequence[Op], size: Callable[[Buffer], int]) -> tuple[dict[Buffer, int], int]:
    """Return the start of each buffer in an arena, and the size of the arena.

    Two buffers overlap only if none is used between the first and the last use of the other.
    """
    starts: dict[Buffer, int] = {}
    taken: list[tuple[int, int, int]] = []  # start, end and last use of the buffers in use
    end = 0
    for buffer, (first, last) in sorted(lifetimes(ops).items(), key=lambda item: item[1][0]):
        taken = sorted(place for place in taken if place[2] >= first)
        at = 0
        for start, stop, _ in taken:
            if start >= at + size(buffer):
                break
            at = max(at, stop)
        taken.append((at, at + size(buffer), last))
        starts[buffer], end = at, max(end, at + size(buffer))
    return starts, end
