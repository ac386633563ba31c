import numpy as np
import pytest

from dflash.decode.drafting.draft import EMPTY, Draft

TREE = Draft([5, 6, 5, 7, 6], [-1, -1, 0, 1, 2])


def test_a_chain_is_a_tree_that_never_forks():
    chain = Draft([4, 5, 6])
    assert chain == Draft([4, 5, 6], [-1, 0, 1])
    assert chain != TREE
    assert chain.depth == 3
    assert chain.depths.tolist() == [1, 2, 3]
    assert chain.tokens.dtype == chain.parents.dtype == np.int32


def test_an_empty_draft_has_no_children():
    assert len(EMPTY) == EMPTY.depth == 0
    assert EMPTY.children() == []
    assert EMPTY.child(-1, 3) == -1
    assert Draft([]) == EMPTY


def test_children_of_a_tree_are_found_by_token():
    assert TREE.depth == 3
    assert TREE.depths.tolist() == [1, 1, 2, 2, 3]
    assert TREE.children() == [0, 1]
    assert TREE.children(0) == [2]
    assert TREE.children(4) == []
    assert TREE.path(4) == [0, 2, 4]
    assert TREE.child(-1, 6) == 1
    assert TREE.child(0, 5) == 2
    assert TREE.child(0, 6) == -1


def test_of_equal_siblings_the_first_counts():
    assert Draft([3, 3], [-1, -1]).child(-1, 3) == 0


@pytest.mark.parametrize("n", range(6))
def test_every_front_part_is_a_tree(n):
    cut = TREE.cut(n)
    assert cut.tokens.tolist() == TREE.tokens[:n].tolist()
    assert cut.parents.tolist() == TREE.parents[:n].tolist()


@pytest.mark.parametrize("parents", [[0], [1, 0], [-2], [-1, 1], [-1], [[-1, 0]]])
def test_malformed_drafts_are_refused(parents):
    with pytest.raises(ValueError, match="draft: "):
        Draft([1] * (2 if parents == [-1] else np.size(parents)), parents)


def test_a_draft_has_one_score_for_each_token():
    chain = Draft([4, 5, 6], scores=np.array([-0.1, -0.2, -0.3], np.float32))
    assert chain.cut(2).scores.tolist() == chain.scores[:2].tolist()
    assert chain.cut(5) is chain
    assert chain == Draft([4, 5, 6])
    with pytest.raises(ValueError, match="a score for each of 3 tokens, got 1"):
        Draft([4, 5, 6], scores=chain.scores[:1])


def test_fields_of_a_draft_can_not_be_set():
    with pytest.raises(AttributeError):
        TREE.tokens = EMPTY.tokens
