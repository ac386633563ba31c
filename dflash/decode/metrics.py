"""Acceptance rates, counted from steps."""

from collections.abc import Iterable
from itertools import zip_longest

from dflash.decode.session import Step

Counts = list[tuple[int, int]]
"""For each position after the last token: steps in which a draft token was accepted there, and steps that had one."""


def counted(steps: Iterable[Step]) -> Counts:
    """Count accepted draft tokens by position: the depth in a tree. Steps without a draft are ignored."""
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
    """Return the acceptance rate at each position."""
    return [accepted / offered for accepted, offered in counts]


def accepted_nodes(step: Step) -> list[int]:
    """Return the accepted nodes of a step's draft, from the root down."""
    found, node = [], -1
    for token in step.tokens[: step.accepted]:
        node = step.draft.child(node, token)
        if node < 0:
            break
        found.append(node)
    return found
