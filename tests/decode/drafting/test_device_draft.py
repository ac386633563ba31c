"""Drafts that a device is still making: what is known of them before, and that nobody waits for it."""

import numpy as np
import pytest

from dflash.decode.drafting.device_draft import DeferredDraft
from dflash.decode.drafting.draft import Draft
from dflash.decode.sampling.history import History
from dflash.decode.sampling.params import Sampling
from dflash.decode.sampling.sampler import Sampler
from dflash.decode.scheduling.batch_plan import _checked
from dflash.errors import DFlashError
from dflash.model.batch import Span, device_drafts_of

TOKENS, PARENTS = [7, 8, 9, 7, 5], [-1, 0, 1, -1, 3]


class FakeTrees:
    """Those of two texts; counts how often somebody looks."""

    latest = True

    def __init__(self):
        self.looked = 0

    def __len__(self):
        return 2

    def tree(self, i):
        self.looked += 1
        return np.array(TOKENS, np.int32) + i, np.array(PARENTS, np.int32)


def test_it_becomes_the_draft_when_its_tokens_are_read():
    trees = FakeTrees()
    draft = DeferredDraft(trees, 0, 4, chain=False)
    assert len(draft) == 4
    assert trees.looked == 0
    assert draft == Draft(TOKENS[:4], PARENTS[:4])
    assert (draft.child(-1, 7), draft.child(0, 8), draft.depths.tolist()) == (0, 1, [1, 2, 3, 1])
    assert trees.looked == 1
    assert draft.drafts is None, "a step keeps its draft, not the device's memory"


def test_planning_a_step_does_not_wait_for_the_device():
    trees = FakeTrees()
    drafts = [DeferredDraft(trees, i, 5, chain=False) for i in range(2)]
    cut = [_checked(draft, room, n_vocab=10) for draft, room in zip(drafts, (5, 3), strict=True)]
    spans = [Span.of(None, 3, draft) for draft in cut]
    assert [len(span.tokens) for span in spans] == [6, 4]
    plain = Span.of(None, 3, Draft([]))
    assert device_drafts_of(spans) == {trees: [0, 1]}
    assert device_drafts_of([spans[1], plain, spans[0]]) == {trees: [2, 0]}
    assert device_drafts_of([plain, spans[1]]) == {trees: [-1, 1]}
    sampler, history = Sampler(Sampling(temperature=1.0), 0), History([1, 2, 3])
    ask = sampler.request(cut[0], history)
    assert len(ask.positions) == 6
    assert trees.looked == 0
    assert list(ask.positions) == [3, 4, 5, 6, 4, 5]
    assert device_drafts_of(spans) == {trees: [-1, 1]}, "after a look they are as any other"


def test_positions_of_a_chain_are_known():
    trees = FakeTrees()
    draft = DeferredDraft(trees, 0, 3, chain=True)
    assert list(draft.positions(10)) == [10, 11, 12, 13]
    assert draft.parents.tolist() == [-1, 0, 1]
    assert trees.looked == 0


def test_children_of_a_chain_are_those_of_the_draft():
    chain, draft = DeferredDraft(FakeTrees(), 0, 4, chain=True), Draft(TOKENS[:4])
    for node in range(-1, 4):
        for token in {0, *TOKENS}:
            assert chain.child(node, token) == draft.child(node, token)


def test_a_span_is_written_out():
    span = Span.of(None, 3, DeferredDraft(FakeTrees(), 1, 5, chain=False)).resolved()
    assert span.tokens.tolist() == [3, 8, 9, 10, 8, 6]
    assert span.parents.tolist() == [-1, 0, 1, 2, 0, 4]
    assert span.device_draft is None
    assert span.resolved() is span
    forks = Span.of(None, 3, Draft([8, 9, 4], [-1, 0, -1]))
    assert (forks.tokens.tolist(), forks.row_parents.tolist()) == ([3, 8, 9, 4], [-1, 0, 1, 0])
    assert Span.of(None, 3, Draft([])).parents.tolist() == [-1]
    chained = Span.chain(None, [5, 6, 7], prefill=True)
    assert (chained.tokens.dtype, chained.parents.tolist(), chained.prefill) == (np.int32, [-1, 0, 1], True)


def test_rows_are_committed_by_parents_that_come_later(lm, pools):
    trees, state = FakeTrees(), lm.model.state()
    draft = DeferredDraft(trees, 0, 5, chain=False)
    state.reserve(6)
    state.mark_read(Span.of(state, 3, draft).row_parents, prefill=False)
    assert trees.looked == 0
    with pytest.raises(DFlashError, match="not a path"):
        state.commit([0, 2])
    state.commit([0, 4, 5])
    assert (state.length, trees.looked) == (3, 1)
    state.close()
    assert pools.free_pages == pools.pages
