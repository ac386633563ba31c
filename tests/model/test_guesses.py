"""When guesses that were launched ahead may be used."""

from types import SimpleNamespace

import numpy as np
import pytest

from dflash.errors import DFlashError
from dflash.kernels.sample import Law
from dflash.model.cuda.guesses import Guesses
from dflash.model.draft import Wish

FEATURES = object()


class State:
    def __init__(self, length):
        self.length = length


class Guesser:
    """Nobody asks it anything."""


GUESSER = Guesser()


class Device:
    """What a pass has left: trees of two texts under some anchors."""

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
    wishes = [Wish(state, Law(), 4, 1, 4) for state in states]
    return states, wishes, Guesses(GUESSER, wishes, Device(anchors, lengths), None).follows(FEATURES)


def test_they_fit_once_all_texts_have_come_so_far():
    states, wishes, guesses = ahead()
    assert guesses.expects(states[0], FEATURES)
    assert not guesses.expects(states[0], object())
    guesses.told(states[0], 3)
    assert not guesses.expects(states[0], FEATURES)
    assert not guesses.fit(wishes, [5, 6])
    guesses.told(states[1], 1)
    assert [state.length for state in states] == [13, 21]
    assert guesses.fit(wishes, [5, 6])
    tokens, parents = guesses.tree(1)
    assert (tokens.tolist(), parents.tolist()) == ([64, 65, 66, 67], [63, 64, 65, 66])


@pytest.mark.parametrize("change", ["fewer", "order", "law", "nodes", "length"])
def test_they_do_not_fit_anything_else(change):
    states, wishes, guesses = ahead()
    guesses.told(states[0], 3)
    guesses.told(states[1], 1)
    if change == "length":
        states[0].length += 1
    others = {
        "fewer": wishes[:1],
        "order": wishes[::-1],
        "law": [wishes[0], wishes[1]._replace(law=Law(1.0, seed=1))],
        "nodes": [wishes[0]._replace(nodes=3), wishes[1]],
    }
    assert not guesses.fit(others.get(change, wishes), [5, 6])


@pytest.mark.parametrize(("anchors", "lengths"), [((5, 7), (13, 21)), ((5, 6), (13, 22))])
def test_guesses_under_another_text_are_an_error(anchors, lengths):
    states, wishes, guesses = ahead(anchors, lengths)
    guesses.told(states[0], 3)
    guesses.told(states[1], 1)
    assert guesses.fit(wishes, [5, 6])
    with pytest.raises(DFlashError, match="guessed under"):
        guesses.tree(0)
