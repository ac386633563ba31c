"""Hidden states of a given text: those that Transformers computes, whole or in chunks, on any device."""

from types import SimpleNamespace

import numpy as np
import pytest
from golden import PRIMARY, load, recorded
from golden_bounds import INTERMEDIATE, allowed

from dflash.errors import ContextOverflow, RequestError
from dflash.generation import scoring

TEXT = "def gcd(a, b):\n    while b:\n        a, b = b, a % b\n    return a\n"


@pytest.mark.parametrize("name", PRIMARY)
def test_they_are_those_of_transformers(name):
    want, model = recorded(name), load(name)
    prompt, n = want["tokens"][: int(want["n_prompt"])].tolist(), model.config.n_layers
    found = scoring.hidden_states(SimpleNamespace(call=lambda run: run()), model, prompt, range(n))
    assert list(found) == list(range(n))
    for layer, states in found.items():
        assert states.dtype == np.float32
        assert states.shape == (len(prompt), model.config.width)
        bound = allowed(name).largest(f"prompt.layer{layer}.out", INTERMEDIATE)
        assert np.abs(states - want[f"prompt.layer{layer}.out"]).max() < bound, layer


def test_any_chunk_gives_the_same_bits(lm, pools, monkeypatch):
    """In the order in which the layers were named, and with nothing left open."""
    whole = lm.hidden_states(TEXT, [7, 0])
    assert list(whole) == [7, 0]
    assert list(lm.hidden_states(TEXT)) == list(range(8))
    monkeypatch.setattr(scoring, "_MAX_ROWS", 16)
    ids = lm.encode(TEXT)
    assert len(ids) > 17
    for layer, states in lm.hidden_states(ids, (7, 0, 7)).items():
        assert states.tobytes() == whole[layer].tobytes()
    assert lm.logits(ids).shape == (len(ids), lm.model.n_vocab)


def test_one_layer_may_be_named_alone(lm):
    assert list(lm.hidden_states("a b", 3)) == [3]
    for wrong in (3, None):
        with pytest.raises(RequestError, match=f"tokens: must be a text or token ids, got {wrong}"):
            lm.hidden_states(wrong, 3)


@pytest.mark.parametrize("layer", [-1, 9, 1.5, "0", True])
def test_a_layer_that_there_is_not_is_named(lm, pools, layer):
    with pytest.raises(RequestError, match=rf"layers: .*0 to 8.*{layer}"):
        lm.hidden_states(TEXT, [0, layer])


def test_wrong_texts_are_refused(lm, pools):
    for tokens, layers, error, words in (
        ("", [0], RequestError, "0 tokens"),
        ([1, 1 << 20], [0], RequestError, "token 1048576"),
        ([1] * 9000, [0], ContextOverflow, "9000"),
        ("a", [], RequestError, "layers: is empty; name some of 0 to 8"),
    ):
        with pytest.raises(error, match=words):
            lm.hidden_states(tokens, layers)
