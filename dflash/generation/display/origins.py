"""Origins of the tokens of a step, and the draft tokens rejected at each of them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

from dflash.decode.drafting.draft import Draft
from dflash.decode.metrics import accepted_nodes
from dflash.decode.step import Step


def kinds(step: Step) -> list[str]:
    """Classify the tokens of a step.

    Returns: a key of `COLORS` for each token; then ``"rejected"`` for each further position that had draft tokens.
    """
    nodes = accepted_nodes(step)
    found = ["injected"] * step.injected + ["accepted"] * len(nodes)
    beside = step.draft.children(nodes[-1] if nodes else -1)
    found += ["corrected" if beside else "bonus"] * (len(step.tokens) - len(found))
    return found + ["rejected"] * (step.draft.depth - len(found))


def counts(steps: Iterable[Step]) -> Counter[str]:
    """Return the number of tokens of each origin, a key of `COLORS`; draft tokens of all branches count as rejected."""
    found: Counter[str] = Counter()
    for step in steps:
        found.update(kinds(step)[: len(step.tokens)])
        found["rejected"] += step.drafted - step.accepted
    return found


def rejected(step: Step) -> list[list[list[int]]]:
    """Return the draft tokens rejected at each token of a step.

    Returns: for each token, the subtrees of the draft tokens that it was chosen instead of, as paths of token ids from their
        roots to their leaves. If the step ends with an accepted token, the draft tokens after that one are added to it.
    """
    nodes = accepted_nodes(step)
    children = defaultdict(list)
    for node, parent in enumerate(step.draft.parents.tolist()):
        children[parent].append(node)
    found: list[list[list[int]]] = [[] for _ in step.tokens]
    for i, parent in enumerate([-1, *nodes]):
        roots = [node for node in children[parent] if node not in nodes]
        if step.tokens and roots:
            found[min(i, len(found) - 1)] += _paths(step.draft, children, roots)
    return found


def _paths(draft: Draft, children: dict[int, list[int]], roots: list[int]) -> Iterator[list[int]]:
    """Yield the token ids from each root down to each of its leaves."""
    open_paths = [[root] for root in reversed(roots)]
    while open_paths:
        path = open_paths.pop()
        below = children[path[-1]]
        if not below:
            yield draft.tokens[path].tolist()
        open_paths += [[*path, node] for node in reversed(below)]
