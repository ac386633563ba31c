"""Draft trees under a grammar: visit their legal nodes, remove the others."""

from collections.abc import Iterator

from dflash.decode.drafting.draft import Draft
from dflash.decode.grammar.matcher import Matcher

MASKS_SECONDS = 0.025
"""CPU seconds of the masks of one draft; in a vocabulary of 248,320 tokens most take 0.1 ms, some 3 ms."""


def walk(matcher: Matcher, draft: Draft) -> Iterator[int]:
    """Visit the root and the legal nodes of a draft, parents before children.

    matcher: position after the tokens above the draft. It stands at each visited node in turn, and at the root again in the
        end.
    """
    depth = 0
    try:
        yield -1
        tokens = draft.tokens.tolist()
        below: list[list[int]] = [[] for _ in range(len(tokens) + 1)]
        for node, parent in enumerate(draft.parents.tolist()):
            below[parent + 1].append(node)
        waiting = [(node, 0) for node in reversed(below[0])]
        while waiting:
            node, above = waiting.pop()
            matcher.rollback(depth - above)
            depth = above
            if matcher.advance(tokens[node]):
                depth += 1
                yield node
                waiting += [(child, depth) for child in reversed(below[node + 1])]
    finally:
        matcher.rollback(depth)


def legal_part(matcher: Matcher, draft: Draft) -> Draft:
    """Return a draft without illegal nodes and all below them, and without the last ones if masks take too long."""
    legal = sorted(node for node in walk(matcher, draft) if node >= 0)
    legal = legal[: affordable(matcher, len(legal))]
    if len(legal) == len(draft):
        return draft
    if draft.is_chain:
        return draft.cut(len(legal))
    place = {-1: -1} | {node: i for i, node in enumerate(legal)}
    return Draft(draft.tokens[legal], [place[draft.parents[node]] for node in legal])


def affordable(matcher: Matcher, n: int) -> int:
    """Return how many of `n` draft tokens may have a mask, by the time that masks have taken lately."""
    return n if n * matcher.mask_seconds <= MASKS_SECONDS else int(MASKS_SECONDS / matcher.mask_seconds)


def contains(draft: Draft, path: list[int]) -> bool:
    """Return True if a path of tokens leads down a draft from its root."""
    node = -1
    for token in path:
        node = draft.child(node, token)
        if node < 0:
            return False
    return True
