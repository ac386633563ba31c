"""How far guesses were right, counted from steps."""

from collections.abc import Iterable
from itertools import zip_longest

from dflash.decode.session import Step

Counts = list[tuple[int, int]]
"""For each position after the last token, how often a guess there was accepted and how often there was one."""


def counted(steps: Iterable[Step]) -> Counts:
    """Count by position; in a tree, a position has a guess if any node lies as deep.

    Parameters
    ----------
    steps : iterable of Step
        Those without a guess count for nothing.
    """
    offered: list[int] = []
    accepted: list[int] = []
    for step in steps:
        depth = step.draft.depth
        for counts, n in ((offered, depth), (accepted, step.accepted)):
            counts.extend([0] * (n - len(counts)))
            for position in range(n):
                counts[position] += 1
    return list(zip_longest(accepted, offered, fillvalue=0))


def shares(counts: Counts) -> list[float]:
    """Share of the guesses at each position that was accepted."""
    return [accepted / offered for accepted, offered in counts]


def accepted_nodes(step: Step) -> list[int]:
    """Guesses of a step that were right, from the root down."""
    found, node = [], -1
    for token in step.tokens[: step.accepted]:
        node = step.draft.child(node, token)
        if node < 0:
            break
        found.append(node)
    return found
