"""Conditions under which drafts that were launched ahead are used."""

from types import SimpleNamespace

import numpy as np
import pytest

from dflash.errors import DFlashError
from dflash.kernels.sample import SampleParams
from dflash.model.cuda.launch_ahead import can_launch_ahead, most_rows
from dflash.model.draft import DraftRequest
from dflash.model.protocols.device_drafter import DeviceDrafts

FEATURES = object()


class State:
    def __init__(self, length):
        self.length = length


class DeviceDrafter:
    """A drafter without functions: the tests call none."""


DRAFTER = DeviceDrafter()


class Device:
    """Outputs of a pass: trees of two sequences with their anchors."""

    def __init__(self, anchors, lengths):
        trees = np.arange(128, dtype=np.int32).reshape(2, 64)
        self._arrays = SimpleNamespace(
            anchors=np.array(anchors, np.int32), lengths=np.array(lengths, np.int32), tokens=trees, parents=trees - 1
        )

    def download(self):
        return self

    def wait(self):
        return self._arrays


def ahead(anchors=(5, 6), lengths=(13, 21)):
    states = State(10), State(20)
    wishes = [DraftRequest(state, -1, 4, SampleParams()) for state in states]
    return states, wishes, DeviceDrafts(DRAFTER, wishes, Device(anchors, lengths), None).reading(FEATURES)


def test_they_fit_once_all_texts_have_come_so_far():
    states, wishes, drafts = ahead()
    assert drafts.awaits(states[0], FEATURES)
    assert not drafts.awaits(states[0], object())
    drafts.record_accepted(states[0], 3)
    assert not drafts.awaits(states[0], FEATURES)
    assert not drafts.matches(wishes, [5, 6])
    drafts.record_accepted(states[1], 1)
    assert [state.length for state in states] == [13, 21]
    assert drafts.matches(wishes, [5, 6])
    tokens, parents = drafts.tree(1)
    assert (tokens.tolist(), parents.tolist()) == ([64, 65, 66, 67], [63, 64, 65, 66])


@pytest.mark.parametrize("change", ["fewer", "order", "law", "nodes", "length"])
def test_they_do_not_fit_anything_else(change):
    states, wishes, drafts = ahead()
    drafts.record_accepted(states[0], 3)
    drafts.record_accepted(states[1], 1)
    if change == "length":
        states[0].length += 1
    others = {
        "fewer": wishes[:1],
        "order": wishes[::-1],
        "law": [wishes[0], wishes[1]._replace(params=SampleParams(1.0, seed=1))],
        "nodes": [wishes[0]._replace(nodes=3), wishes[1]],
    }
    assert not drafts.matches(others.get(change, wishes), [5, 6])


@pytest.mark.parametrize(("anchors", "lengths"), [((5, 7), (13, 21)), ((5, 6), (13, 22))])
def test_drafts_of_another_text_are_an_error(anchors, lengths):
    states, wishes, drafts = ahead(anchors, lengths)
    drafts.record_accepted(states[0], 3)
    drafts.record_accepted(states[1], 1)
    assert drafts.matches(wishes, [5, 6])
    with pytest.raises(DFlashError, match="tree roots"):
        drafts.tree(0)


def test_rows_that_may_be_text():
    """Counts only rows of the given spans, and of a draft tree at most one row per position."""
    sizes = [1, 8, 13, 40]
    spans = [SimpleNamespace(state=State(10 * n), tokens=range(n)) for n in sizes]
    target = SimpleNamespace(
        latest=SimpleNamespace(spans=spans),
        alone=True,
        device_requests={2: DraftRequest(State(0), -1, 4, SampleParams(), 3, nodes=12)},
    )
    assert [most_rows(target, order) for order in ([0], [1], [2], [1, 2], [3, 2, 1, 0], [0, 1, 2, 3])] == [
        1,
        8,
        5,
        13,
        54,
        54,
    ]
    wishes = [
        DraftRequest(State(130), -1, 4, SampleParams()),
        DraftRequest(State(80), -1, 4, SampleParams()),
    ]
    assert can_launch_ahead(target, wishes, [2, 1])
    assert not can_launch_ahead(target, wishes, [1, 2])
    target.alone = False
    assert not can_launch_ahead(target, wishes, [2, 1])
