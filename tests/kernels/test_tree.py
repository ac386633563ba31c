"""Draft trees against an exhaustive search over all prefixes."""

import numpy as np
import pytest

from dflash.errors import KernelError
from dflash.kernels.tree import grow, reference

CASES = [pytest.param(*case, id=name) for name, *case in reference.cases()]
RNG = np.random.default_rng(17)


def candidates(depth, width, dependent, *, fewer=False):
    ids = np.stack([RNG.permutation(1000)[:width] for _ in range(depth)]).astype(np.int32)
    scores = -np.sort(RNG.gamma(1.0, 2.0, (depth, width))).astype(np.float32)
    edges = -RNG.gamma(1.0, 2.0, (depth, width, width)).astype(np.float32) if dependent else None
    if fewer:
        ids[-1, width // 2 :], scores[-1, width // 2 :] = -1, -np.inf
        if dependent:
            edges[RNG.random(edges.shape) < 0.3] = -np.inf
            edges[RNG.random(edges.shape) < 0.1] = np.nan
    return ids, scores, edges


def grown(function, ids, scores, edges, n):
    tokens, parents = np.full(n + 1, -7, np.int32), np.full(n + 1, -7, np.int32)
    count = function(ids, scores, edges, tokens=tokens[:n], parents=parents[:n])
    assert tokens[n] == parents[n] == -7
    return tokens[:count].tolist(), parents[:count].tolist()


@pytest.mark.parametrize(("depth", "width", "n", "dependent"), CASES)
@pytest.mark.parametrize("fewer", [False, True], ids=["", "fewer"])
def test_trees_equal_the_definition(depth, width, n, dependent, fewer):
    given = candidates(depth, width, dependent, fewer=fewer)
    tokens, parents = grown(grow, *given, n)
    assert (tokens, parents) == grown(reference.grow, *given, n)
    if not fewer:
        assert len(tokens) == min(n, sum(width**length for length in range(1, depth + 1)))


def test_equal_edges_give_the_tree_of_plain_scores():
    ids, scores, _ = candidates(5, 6, dependent=False)
    edges = np.repeat(scores[:, None], 6, axis=1)
    assert grown(grow, ids, scores, edges, 40) == grown(grow, ids, scores, None, 40)


def test_equals_come_in_the_order_in_which_they_were_found():
    ids = np.array([[5, 6, 7], [1, 2, 3]], np.int32)
    scores = np.full((2, 3), -1.0, np.float32)
    tokens, parents = grown(grow, ids, scores, None, 12)
    assert tokens == [5, 1, 6, 7, 2, 1, 1, 3, 2, 2, 3, 3]
    assert parents == [-1, 0, -1, -1, 0, 2, 3, 0, 2, 3, 2, 3]


def test_nothing_to_grow():
    ids, scores = np.full((3, 2), -1, np.int32), np.full((3, 2), -np.inf, np.float32)
    assert grown(grow, ids, scores, None, 4) == ([], [])
    assert grown(grow, ids[:0], scores[:0], None, 4) == ([], [])
    ids[0], scores[0] = [4, 5], np.nan
    assert grown(grow, ids, scores, None, 4) == ([], [])


def test_candidates_of_wrong_shape_are_refused():
    ids, scores, _ = candidates(3, 4, dependent=False)
    out = np.zeros(5, np.int32)
    with pytest.raises(KernelError, match=r"ids: wanted contiguous int32 \(3, 4\), got strided int32 \(3, 4\)"):
        grow(np.asfortranarray(ids), scores, tokens=out, parents=out)
    with pytest.raises(KernelError, match=r"edges: wanted contiguous float32 \(3, 4, 4\), got float32 \(3, 1, 4\)"):
        grow(ids, scores, scores[:, None].copy(), tokens=out, parents=out)
