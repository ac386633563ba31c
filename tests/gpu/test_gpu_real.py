"""The laws of the loop on a GPU: chains of guesses and company change no bit; trees change no text, but near a tie."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from golden import PRIMARY, chain, load, recorded
from guessers import Remembers

from dflash.decode.draft import Draft
from dflash.decode.drafter import Drafter
from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.strategy import Strategy
from dflash.model.batch import Span
from dflash.model.load import load_model

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_p=0.9, top_k=40, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.2, seed=2),
]
IDS = ["greedy", "T 0.7", "T 1 with everything"]
N = 40


@cache
def demo():
    return load_model("demo", device="cuda", context=2048, sequences=4)


@pytest.fixture(params=[*PRIMARY, "demo"])
def model_and_prompt(request):
    if request.param == "demo":
        model, prompt = demo().model, demo().tokenizer.encode("def fibonacci(n):\n    if n")
    else:
        model = load(request.param, kv="f16", device="cuda")
        want = recorded(request.param)
        prompt = want["tokens"][: int(want["n_prompt"])].tolist()
    before = model.pools.free_pages, model.pools.free_slots
    yield model, prompt
    assert (model.pools.free_pages, model.pools.free_slots) == before


@dataclass(frozen=True)
class Chain(Drafter):
    """Guesses a given continuation as a chain, whose every fifth token is wrong."""

    text: tuple[int, ...]
    size: int

    def start(self, session, model, snapshot=None):
        return _Chaining(self, session)


class _Chaining:
    capture = (0,)

    def __init__(self, drafter, session):
        self.drafter, self.session = drafter, session

    def propose(self, room):
        at = len(self.session.text)
        ahead = self.drafter.text[at:][: min(room, self.drafter.size)]
        tokens = [token ^ 1 if (at + i) % 5 == 0 else token for i, token in enumerate(ahead)]
        return Draft(tokens, range(-1, len(tokens) - 1))

    def observe(self, out, rows):
        assert out.captured[0][rows].shape[1] == out.hidden.shape[1]

    def close(self):
        pass


def written(model, prompt, sampling, **settings):
    session = Session(prompt, sampling=sampling, max_tokens=N, **settings)
    for _ in Engine(model).stream(session):
        pass
    return session


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_chains_change_nothing(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    plain = written(model, prompt, sampling)
    for size in (1, 15, 60):
        guessed = written(model, prompt, sampling, strategy=Strategy(Chain(tuple(plain.text), size)))
        assert guessed.tokens == plain.tokens
        assert len(guessed.steps) < len(plain.steps)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_trees_change_no_text(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    plain = written(model, prompt, sampling)
    for size in (2, 16, 60):
        guessed = written(model, prompt, sampling, strategy=Strategy(Remembers(tuple(plain.text), size)))
        assert guessed.tokens == plain.tokens
        assert guessed.n_accepted > N / 4


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_company_changes_nothing(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    prompts = [prompt, prompt[:3], prompt[::-1]]
    alone = [written(model, each, sampling).tokens for each in prompts]
    guesser = Strategy(Chain(tuple(prompt + alone[0]), 12))
    together = [
        Session(each, sampling=sampling, max_tokens=N, strategy=strategy)
        for each, strategy in zip(prompts, (guesser, Strategy(), Strategy()), strict=True)
    ]
    for _ in Engine(model, chunk=64).run(together):
        pass
    assert [session.tokens for session in together] == alone


def test_a_snapshot_of_the_whole_prompt(model_and_prompt):
    """What was read once is not read again, and the text goes on as it did."""
    model, prompt = model_and_prompt
    plain = written(model, prompt, SAMPLINGS[1])
    session, engine = Session(prompt, max_tokens=1), Engine(model)
    engine.add(session)
    engine.step()
    assert session.n_read == len(prompt) - 1
    snapshot = session.state.snapshot()
    engine.close()
    for _ in range(2):
        again = written(model, prompt, SAMPLINGS[1], prefix=snapshot)
        assert again.tokens == plain.tokens
        assert sum(step.prefilled for step in again.steps) == 0
    snapshot.close()


def together(model, prompts, sampling, *, between=lambda engine, i: None, **settings):
    sessions = [Session(p, sampling=sampling, max_tokens=N - 7 * i, **settings) for i, p in enumerate(prompts)]
    engine = Engine(model)
    for session in sessions:
        engine.add(session)
        engine.step()
        engine.step()
    i = 0
    while engine.busy:
        engine.step()
        between(engine, i)
        i += 1
    assert all(session.error is None for session in sessions)
    return [session.tokens for session in sessions]


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=IDS[:2])
def test_looking_ahead_changes_nothing(model_and_prompt, sampling, monkeypatch):
    """Texts that come and go; snapshots and other forwards between the steps."""
    model, prompt = model_and_prompt
    prompts = [prompt, prompt[:3], prompt[::-1], prompt[5:]]
    monkeypatch.setattr(model, "looks_ahead", False)
    want = together(model, prompts, sampling)
    monkeypatch.setattr(model, "looks_ahead", True)
    assert together(model, prompts, sampling) == want

    def disturb(engine, i):
        if i % 5 == 1 and engine.active:
            engine._active[0].state.snapshot().close()
        if i % 5 == 3:
            state = model.state()
            model.forward([Span(state, np.array(prompt, np.int32), chain(len(prompt)), whole=True)])
            state.close()

    assert together(model, prompts, sampling, between=disturb) == want
    stop = want[0][9]
    ended = together(model, prompts, sampling, eos=[stop])
    assert ended == [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in want]
