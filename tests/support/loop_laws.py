"""Laws of the engine on every device: neither drafts nor the batch change an output.

A test file brings the fixture `model_and_prompt` and imports all of this. On a GPU a tree changes no text but near a tie.
"""

from functools import cache

import pytest
from golden import PRIMARY, load, recorded
from oracles import Remembering, Remembers

from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.7, seed=1),
    Sampling(temperature=1.0, top_p=0.9, top_k=40, min_p=0.02, repetition_penalty=1.3, frequency_penalty=0.2, seed=2),
]
IDS = ["greedy", "T 0.7", "T 1 with everything"]
MODELS = [*PRIMARY, "demo"]
N = 40


@cache
def demo(device):
    return load_model("demo", LoadSettings(device=device, threads=1, context=2048, sequences=4))


def loaded(name, device):
    """One of `MODELS` and a prompt for it."""
    if name == "demo":
        return demo(device).model, demo(device).tokenizer.encode("def fibonacci(n):\n    if n")
    want = recorded(name)
    return load(name, kv="f16", device=device), want["tokens"][: int(want["n_prompt"])].tolist()


class Chain(Remembers):
    """Drafts a given continuation as a chain, whose every fifth token is wrong."""

    def start(self, session, model, snapshot=None):
        return _Chaining(self, session)


class _Chaining(Remembering):
    def propose(self, max_draft):
        at = len(self.session.token_ids)
        ahead = self.drafter.text[at:][: min(max_draft, self.drafter.size)]
        return Draft([token ^ 1 if (at + i) % 5 == 0 else token for i, token in enumerate(ahead)])


def written(model, prompt, sampling, **settings):
    session = Session(prompt, sampling=sampling, max_tokens=N, **settings)
    for _ in Engine(model).stream(session):
        pass
    return session


@pytest.mark.parametrize("kind", [Chain, Remembers])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_drafts_change_nothing(model_and_prompt, sampling, kind):
    model, prompt = model_and_prompt
    plain = written(model, prompt, sampling)
    for size in (2, 15, 60):
        drafted = written(model, prompt, sampling, strategy=Strategy(kind(tuple(plain.token_ids), size)))
        assert drafted.output_ids == plain.output_ids
        assert drafted.n_accepted > N / 4
        assert len(drafted.steps) < len(plain.steps)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=IDS)
def test_company_changes_nothing(model_and_prompt, sampling):
    model, prompt = model_and_prompt
    prompts = [prompt, prompt[:3], prompt[::-1]]
    alone = [written(model, each, sampling).output_ids for each in prompts]
    drafting = Strategy(Chain(tuple(prompt + alone[0]), 12))
    together = [
        Session(each, sampling=sampling, max_tokens=N, strategy=strategy)
        for each, strategy in zip(prompts, (drafting, Strategy(), Strategy()), strict=True)
    ]
    list(Engine(model, chunk=max(5, model.chunk_alignment)).run(together))
    assert [session.output_ids for session in together] == alone


def test_a_snapshot_of_the_whole_prompt(model_and_prompt):
    """A prefilled prefix is not read again, and the output is the same."""
    model, prompt = model_and_prompt
    plain = written(model, prompt, SAMPLINGS[1])
    session, engine = Session(prompt, max_tokens=1), Engine(model)
    engine.add(session)
    engine.step()
    assert session.n_prefilled == len(prompt) - 1
    snapshot = session.state.snapshot()
    engine.close()
    for _ in range(2):
        again = written(model, prompt, SAMPLINGS[1], prefix=snapshot)
        assert again.output_ids == plain.output_ids
        assert sum(step.prefilled for step in again.steps) == 0
    snapshot.close()
