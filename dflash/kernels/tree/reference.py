"""Definitions: the tree of the most probable prefixes, and the path of accepted tokens through a tree."""

from itertools import product

import numpy as np


def grow(ids, scores, edges=None, *, tokens, parents):
    """Add the chain, then the heaviest other prefixes; parents come first: no prefix weighs more than its parent."""
    depth, width = ids.shape
    found = {}
    for length in range(1, depth + 1):
        for path in product(range(width), repeat=length):
            steps = [_score(ids, scores, edges, t, path) for t in range(length)]
            if min(steps) > -np.inf:
                found[path] = sum(map(float, steps))
    chain = _chain(ids, scores, edges, len(tokens))
    rest = sorted(set(found) - set(chain), key=lambda path: (-found[path], len(path)))
    nodes = (chain + rest)[: len(tokens)]
    for i, path in enumerate(nodes):
        tokens[i] = ids[len(path) - 1, path[-1]]
        parents[i] = nodes.index(path[:-1]) if len(path) > 1 else -1
    return len(nodes)


def _score(ids, scores, edges, t, path):
    """Return the score of the candidate at position t of a path."""
    score = scores[t, path[t]] if edges is None else edges[t, path[t - 1] if t else 0, path[t]]
    return score if ids[t, path[t]] >= 0 and not np.isnan(score) else -np.inf


def _chain(ids, scores, edges, most):
    """Return the prefixes of the path that takes the best candidate at each position, the first among equals."""
    paths, path = [], ()
    for t in range(min(len(ids), most)):
        steps = [_score(ids, scores, edges, t, (*path, j)) for j in range(ids.shape[1])]
        if max(steps) == -np.inf:
            break
        path = (*path, int(np.argmax(steps)))
        paths.append(path)
    return paths


def walk(tokens, parents, drawn, taken=-1):
    """Follow the sampled tokens from the root; return the accepted rows, root first, and the bonus token after the last.

    With `taken`, that number of rows of a chain is accepted below the root, whatever was sampled.

    tokens, parents: int (N,); Rows of a sequence: its last committed token, then its draft tokens; parents are row numbers.
    drawn: int (N,); Token sampled from each row.
    """
    if taken >= 0:
        return list(range(taken + 1)), int(drawn[taken])
    path, below = [0], 0
    while below is not None:
        token = drawn[path[-1]]
        below = next((r for r in range(path[-1] + 1, len(tokens)) if (parents[r], tokens[r]) == (path[-1], token)), None)
        path += [] if below is None else [below]
    return path, int(token)


def cases():
    """Yield names, positions, candidates, nodes, and whether scores depend on the previous candidate."""
    for depth, width, n, dependent in (
        (1, 1, 1, False),
        (1, 5, 9, False),
        (3, 4, 3, False),
        (4, 3, 13, False),
        (6, 3, 64, False),
        (7, 2, 22, False),
        (2, 64, 64, False),
        (3, 3, 1, True),
        (4, 4, 22, True),
        (6, 3, 50, True),
    ):
        yield f"{depth}x{width} {n}{' edges' if dependent else ''}", depth, width, n, dependent
