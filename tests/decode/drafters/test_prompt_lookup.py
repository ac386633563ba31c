"""Prompt lookup: what it proposes, and that no draft token changes a text."""

import pickle

import numpy as np
import pytest
from oracles import naive
from toy import Toy

from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError
from dflash.model.batch import Span

PROMPT = [7, 3, 5, 1, 2, 9, 7, 3, 5, 11, 2, 7, 3]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=4), Sampling(temperature=1.0, frequency_penalty=0.3, seed=2)]


def draft_of(prompt, room=64, shape=None, **settings):
    drafter = PromptLookup(**settings)
    session = Session(prompt, strategy=Strategy(drafter, shape))
    return drafter.start(session, None).propose(room).tokens.tolist()


def test_what_followed_the_longest_and_then_the_latest():
    text = [1, 2, 3, 40, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3]
    assert draft_of(text, min_ngram=1, n_draft=2) == [40, 2]
    assert draft_of(text, min_ngram=1, max_ngram=2, n_draft=2) == [60, 1]
    assert draft_of([5, 6, 7], min_ngram=1) == []
    assert draft_of([4, 4], min_ngram=1, n_draft=3) == [4, 4, 4]
    assert draft_of([4, 4], min_ngram=2) == []


def test_the_longer_the_run_the_surer():
    longer = PromptLookup(min_ngram=1).start(Session([1, 2, 3, 9, 4, 1, 2, 3]), None).propose(4).scores
    shorter = PromptLookup(min_ngram=1).start(Session([1, 2, 3, 9, 4, 3]), None).propose(4).scores
    assert (shorter < longer).all()
    assert (longer < 0).all()
    assert (np.diff(longer) > 0).all()


def test_a_draft_has_at_most_the_tokens_of_drafter_step_and_shape():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert draft_of(text, n_draft=5) == [3, 4, 5, 6, 7]
    assert draft_of(text, room=3) == [3, 4, 5]
    assert draft_of(text, room=0) == []
    assert draft_of(text, shape=Chain(2)) == [3, 4]
    assert draft_of(text, shape=Chain(), n_draft=1) == [3]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_no_draft_changes_the_text(sampling):
    """The law repeats what the text has said before, most of the time."""

    def law(text):
        said = 3 * np.eye(13, dtype=np.float32)[text[-9]] if len(text) > 9 else 0
        return said + np.sin(np.arange(13) * (1 + text[-1]))

    toy = Toy(law=law)
    truth = naive(toy, PROMPT, sampling, 60, seed=sampling.seed)
    sessions = [
        Session(PROMPT[:n], sampling=sampling, strategy=Strategy(PromptLookup(n_draft=most)), max_tokens=60)
        for n, most in ((13, 4), (13, 30), (1, 4))
    ]
    engine = Engine(toy, chunk=5)
    list(engine.run(sessions))
    assert [session.output_ids for session in sessions[:2]] == [truth, truth]
    assert sessions[0].n_accepted > 10
    assert toy.leaked == (0, 0, 0)


def test_it_reads_what_was_produced_and_begins_anywhere():
    """A prefix that others have read is part of the text; so is every new token, drafted or not."""
    toy = Toy(law=lambda text: np.eye(13, dtype=np.float32)[(text[-1] + 1) % 13])
    state = toy.state()
    state.reserve(3)
    toy.forward([Span.chain(state, [0, 1, 2], prefill=True)])
    prefix = state.snapshot()
    state.close()
    session = Session([0, 1, 2, 3], strategy=Strategy(PromptLookup()), max_tokens=60, prefix=prefix)
    list(Engine(toy).run([session]))
    assert session.output_ids == [(4 + i) % 13 for i in range(60)]
    # the first round is new, and so are the two tokens that must be known
    assert session.n_accepted == session.n_drafted > 30
    prefix.close()
    assert toy.leaked == (0, 0, 0)


def test_settings_are_compared_and_checked():
    assert PromptLookup(max_ngram=5) == PromptLookup(max_ngram=5) != PromptLookup()
    assert pickle.loads(pickle.dumps(PromptLookup())) == PromptLookup()
    assert repr(PromptLookup(n_draft=4)) == "PromptLookup(n_draft=4)"
    for settings in (
        {"min_ngram": 0},
        {"min_ngram": 5, "max_ngram": 4},
        {"n_draft": 0},
        {"n_draft": "a"},
        {"max_ngram": 8.0},
    ):
        with pytest.raises(RequestError, match="PromptLookup"):
            PromptLookup(**settings)
