"""Suffix decoding: what it drafts, from which sequences, and that no draft changes an output."""

import pickle

import numpy as np
import pytest
from oracles import naive
from toy import Toy

from dflash.decode.drafters.suffix import STORE, SuffixDecoding
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.registry import name
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError

PROMPT = [7, 3, 5, 1, 2, 9, 7, 3, 5, 11, 2, 7, 3]
SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=4), Sampling(temperature=1.0, frequency_penalty=0.3, seed=2)]


def draft_of(prompt, room=64, shape=None, **settings):
    drafter = SuffixDecoding(**settings)
    return drafter.start(Session(prompt, strategy=Strategy(drafter, shape)), Toy()).propose(room)


def cycle(text):
    """The token after the last one, always the same."""
    return np.eye(13, dtype=np.float32)[(text[-1] * 2 + 1) % 13]


def test_the_most_frequent_continuation_comes_first_and_unlikely_ones_are_left_out():
    text = [1, 2, 40, 41, 1, 2, 50, 51, 1, 2, 40, 41, 1, 2, 40, 42, 1, 2]
    draft = draft_of(text, n_draft=4)
    assert draft.tokens.tolist() == [40, 41, 1, 50]
    assert draft.parents.tolist() == [-1, 0, 1, -1]
    chain = draft_of(text, n_draft=4, shape=Chain())
    assert chain.tokens.tolist() == [40, 41, 1, 2]
    assert (chain.scores < 0).all()


def test_occurrences_count_more_the_more_tokens_before_them_are_equal():
    text = [9, 8, 1, 2, 60, 61, *[5, 1, 2, 70, 71] * 2, 9, 8, 1, 2]
    assert draft_of(text, n_draft=1, max_ngram=2).tokens.tolist() == [60]


def test_a_draft_has_at_most_the_tokens_of_drafter_step_and_shape():
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    assert draft_of(text, n_draft=5).tokens.tolist() == [3, 4, 5, 6, 7]
    assert draft_of(text, n_draft=5, room=3).tokens.tolist() == [3, 4, 5]
    assert draft_of(text, shape=Chain(2)).tokens.tolist() == [3, 4]
    assert not len(draft_of(text, room=0))
    assert not len(draft_of([5, 6, 7]))


@pytest.mark.parametrize("settings", [{}, {"store": 64}, {"shape": Chain()}], ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_no_draft_changes_the_output(sampling, settings):
    """The law repeats what the text has said before, most of the time."""

    def law(text):
        said = 3 * np.eye(13, dtype=np.float32)[text[-9]] if len(text) > 9 else 0
        return said + np.sin(np.arange(13) * (1 + text[-1]))

    toy = Toy(law=law)
    shape = settings.get("shape")
    drafter = SuffixDecoding(n_draft=9, store=settings.get("store", 0))
    truth = naive(toy, PROMPT, sampling, 60, seed=sampling.seed)
    engine = Engine(toy, chunk=5)
    for _ in range(2):
        sessions = [
            Session(PROMPT[:n], sampling=sampling, strategy=Strategy(drafter, shape), max_tokens=60) for n in (13, 13, 1)
        ]
        list(engine.run(sessions))
        assert [session.output_ids for session in sessions[:2]] == [truth, truth]
    assert sessions[0].n_accepted > 10
    assert toy.leaked == (0, 0, 0)


def answers(engine, strategy, salts):
    """Tokens of each step of one answer for each salt, one after the other."""
    found = []
    for salt in salts:
        session = Session([1, 2, 3], strategy=strategy, max_tokens=11, cache_salt=salt)
        list(engine.stream(session))
        found.append((session.output_ids, session.n_accepted))
    return found


def test_answers_to_earlier_requests_are_drafted_for_the_same_salt_only():
    toy = Toy(law=cycle)
    first, again, other, last = answers(Engine(toy), Strategy(SuffixDecoding(store=100)), ["", "", "x", ""])
    assert first[0] == again[0] == other[0] == last[0]
    assert first[1] == other[1] < again[1] == last[1]


def test_without_a_store_acceptance_does_not_depend_on_earlier_requests():
    first, again = answers(Engine(Toy(law=cycle)), Strategy(SuffixDecoding()), ["", ""])
    assert first == again


def test_the_store_forgets_the_oldest_answers():
    toy, drafter = Toy(n_vocab=100), SuffixDecoding(store=20)
    for start in (10, 20, 30, 40):
        state = drafter.start(Session([start], strategy=Strategy(drafter)), toy)
        state._session.token_ids += range(start + 1, start + 7)
        state.close()
        state.close()
    store = toy.attachments[drafter][""]
    assert len(store.index) <= 20

    def drafted(start):
        session = Session([start + 1, start + 2, start + 3], strategy=Strategy(drafter))
        return drafter.start(session, toy).propose(2).tokens.tolist()

    assert drafted(40) == [44, 45]
    assert drafted(10) == []


def test_settings_are_compared_and_checked():
    assert SuffixDecoding(max_ngram=5) == SuffixDecoding(max_ngram=5) != SuffixDecoding()
    assert pickle.loads(pickle.dumps(SuffixDecoding())) == SuffixDecoding()
    assert repr(SuffixDecoding(n_draft=4)) == "SuffixDecoding(4)"
    for text in ("suffix", "suffix:9", "suffix-shared", "suffix-shared:15"):
        assert name(Strategy(text)) == text
    assert Strategy("suffix-shared:15").drafter == SuffixDecoding(n_draft=15, store=STORE)
    for settings in ({"min_ngram": 0}, {"min_ngram": 5, "max_ngram": 4}, {"n_draft": 0}, {"store": -1}, {"max_ngram": 8.0}):
        with pytest.raises(RequestError, match="SuffixDecoding"):
            SuffixDecoding(**settings)
