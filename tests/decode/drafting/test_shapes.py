"""Chains and trees of candidates."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dflash.decode.drafting.shapes.chain import Chain
from dflash.decode.drafting.shapes.tree import Tree
from dflash.errors import RequestError
from dflash.model.candidates import Candidates


def random_candidates(rng, depth, width, *, edges=False):
    ids = np.argsort(rng.random((depth, 50)), axis=1)[:, :width].astype(np.int32)
    scores = -np.sort(rng.gamma(1.0, 1.5, (depth, width))).astype(np.float32)
    return Candidates(ids, scores, -rng.gamma(1.0, 1.5, (depth, width, width)).astype(np.float32) if edges else None)


def accepted(draft, text):
    """How many draft tokens are right if the target writes `text`."""
    node, n = -1, 0
    while n < len(text) and (node := draft.child(node, text[n])) >= 0:
        n += 1
    return n


@given(st.integers(0, 10**9), st.booleans())
@settings(max_examples=80)
def test_a_tree_begins_with_the_chain(number, edges):
    rng = np.random.default_rng(number)
    depth, width = int(rng.integers(1, 9)), int(rng.integers(1, 6))
    candidates = random_candidates(rng, depth, width, edges=edges)
    chain, budget = Chain().draft(candidates, 64), int(rng.integers(1, 40))
    tree = Tree(budget).draft(candidates, 64)
    assert len(chain) == depth
    assert tree.cut(depth) == chain.cut(budget)
    assert len(tree) == min(budget, sum(width**i for i in range(1, depth + 1)))
    assert len(set(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))) == len(tree)
    for _ in range(20):
        text = [int(rng.choice(row)) for row in candidates.ids]
        assert accepted(tree, text) >= accepted(chain, text) - (depth - min(depth, budget))


@given(st.integers(0, 10**9))
@settings(max_examples=40)
def test_no_other_tree_with_the_chain_is_expected_to_do_better(number):
    """Positions being independent, what a tree accepts is the sum of the probabilities of its prefixes."""
    rng = np.random.default_rng(number)
    candidates = random_candidates(rng, 5, 4)
    tree = Tree(18).draft(candidates, 64)
    best = expected(tree, candidates)
    for _ in range(30):
        nodes = [(0,) * n for n in range(1, 6)]
        while len(nodes) < 18:
            above = nodes[rng.integers(len(nodes))] if rng.random() < 0.8 else ()
            node = (*above, int(rng.integers(4)))
            if len(node) <= 5 and node not in nodes:
                nodes.append(node)
        other = sum(np.exp(sum(candidates.scores[t, j] for t, j in enumerate(node))) for node in nodes)
        assert other <= best + 1e-6


def expected(tree, candidates):
    total = 0.0
    for node in range(len(tree)):
        tokens = tree.tokens[tree.path(node)]
        places = [(t, np.flatnonzero(candidates.ids[t] == token)[0]) for t, token in enumerate(tokens)]
        total += np.exp(sum(candidates.scores[place] for place in places))
    return total


def test_what_depends_on_the_token_before():
    """The chain follows the pairs, not the best of each position."""
    ids = np.array([[1, 2], [3, 4]], np.int32)
    scores = np.log(np.array([[0.6, 0.4], [0.9, 0.1]], np.float32))
    edges = np.log(np.array([[[0.6, 0.4], [0.6, 0.4]], [[0.2, 0.8], [0.7, 0.3]]], np.float32))
    candidates = Candidates(ids, scores, edges)
    assert Chain().draft(candidates, 9).tokens.tolist() == [1, 4]
    tree = Tree(5).draft(candidates, 9)
    assert tree.tokens.tolist() == [1, 4, 2, 3, 3]
    assert tree.parents.tolist() == [-1, 0, -1, 2, 0]


@pytest.mark.parametrize("shape", [Chain(), Chain(4), Tree(3), Tree(22), Tree(22, depth=3), Tree(22, width=2)], ids=repr)
@pytest.mark.parametrize("edges", [False, True], ids=["", "edges"])
def test_a_draft_has_at_most_the_tokens_and_the_depth_of_its_shape(shape, edges):
    rng = np.random.default_rng(3)
    for most in (1, 4, 15):
        for room in (0, 1, 2, 9, 63):
            positions, width = shape.wants(most, room)
            assert 0 <= positions <= min(most, room)
            assert width >= 1
            draft = shape.draft(random_candidates(rng, positions, width, edges=edges), room)
            assert len(draft) <= room
            assert draft.depth <= min(getattr(shape, "depth", None) or 99, most)
            assert (len(draft) == 0) == (positions == 0)
            fans = [len(draft.children(node)) for node in range(-1, len(draft))]
            assert max(fans) <= (getattr(shape, "width", None) or 99)


def test_as_many_candidates_are_asked_for_as_can_be_of_use():
    rng = np.random.default_rng(4)
    for budget in (1, 7, 15, 16, 22, 40):
        positions, width = Tree(budget).wants(15, 63)
        wide = random_candidates(rng, positions, 50)
        wide.scores[:] = -rng.gamma(1.0, 1e-3, (positions, 1)).astype(np.float32) - 1e-4 * np.arange(50, dtype=np.float32)
        narrow = Candidates(wide.ids[:, :width], wide.scores[:, :width])
        assert Tree(budget).draft(narrow, 63) == Tree(budget).draft(wide, 63)


def test_where_candidates_run_out():
    ids = np.array([[1, 2, -1], [3, -1, -1], [-1, -1, -1], [4, 5, 6]], np.int32)
    scores = np.where(ids >= 0, np.float32(-1), np.float32(-np.inf))
    candidates = Candidates(ids, scores)
    assert Chain().draft(candidates, 9).tokens.tolist() == [1, 3]
    assert Tree(9).draft(candidates, 9).tokens.tolist() == [1, 3, 2, 3]
    assert Tree(9).draft(candidates, 9).parents.tolist() == [-1, 0, -1, 2]


def test_shapes_refuse_settings_out_of_range():
    for value in (0, "3", 2.5):
        for make in (Chain, Tree, partial(Tree, 8), partial(Tree, 8, None)):
            with pytest.raises(RequestError, match="must be a whole number of at least 1"):
                make(value)
    with pytest.raises(RequestError, match="budget: must be a whole number"):
        Tree(None)
