"""The laws of the loop on real arithmetic: small random models and the demo."""

from functools import cache

import pytest
from golden import PRIMARY, load, recorded
from guessers import Remembers

from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.strategy import Strategy
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
    return load_model("demo", device="cpu", threads=2, context=2048, sequences=4)


@pytest.fixture(params=[*PRIMARY, "demo"])
def model_and_prompt(request):
    if request.param == "demo":
        model, prompt = demo().model, demo().tokenizer.encode("def fibonacci(n):\n    if n")
    else:
        model = load(request.param, kv="f16")
        want = recorded(request.param)
        prompt = want["tokens"][: int(want["n_prompt"])].tolist()
    before = model.pools.free_pages, model.pools.free_slots
    yield model, prompt
    assert (model.pools.free_pages, model.pools.free_slots) == before


def written(model, prompt, sampling, **settings):
    session = Session(prompt, sampling=sampling, max_tokens=N, **settings)
    for _ in Engine(model).stream(session):
        pass
    return session


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_guesses_change_nothing(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    plain = written(model, prompt, sampling)
    for size in (2, 16, 60):
        strategy = Strategy(Remembers(tuple(plain.text), size))
        guessed = written(model, prompt, sampling, strategy=strategy)
        assert guessed.tokens == plain.tokens
        assert guessed.n_accepted > N / 4
        assert len(guessed.steps) < len(plain.steps)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_company_changes_nothing(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    prompts = [prompt, prompt[:3], prompt[::-1]]
    alone = [written(model, each, sampling).tokens for each in prompts]
    guesser = Strategy(Remembers(tuple(prompt + alone[0]), 12))
    together = [
        Session(each, sampling=sampling, max_tokens=N, strategy=strategy)
        for each, strategy in zip(prompts, (guesser, Strategy(), Strategy()), strict=True)
    ]
    for _ in Engine(model, chunk=5).run(together):
        pass
    assert [session.tokens for session in together] == alone


def test_a_snapshot_of_the_whole_prompt(model_and_prompt):
    """What was read once is not read again, and the text goes on as it did."""
    model, prompt = model_and_prompt
    plain = written(model, prompt, SAMPLINGS[1])
    session = Session(prompt, max_tokens=1)
    engine = Engine(model)
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
