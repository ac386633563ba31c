"""The laws of the loop on a GPU, and of looking ahead, which it alone does."""

import numpy as np
import pytest
from golden import chain
from loop_laws import *  # noqa: F403
from loop_laws import IDS, MODELS, SAMPLINGS, N, loaded

from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.model.batch import Span


@pytest.fixture(params=MODELS)
def model_and_prompt(request):
    model, prompt = loaded(request.param, "cuda")
    before = model.pools.free_pages, model.pools.free_slots
    yield model, prompt
    assert (model.pools.free_pages, model.pools.free_slots) == before


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
    return [session.output_ids for session in sessions]


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=IDS[:2])
def test_looking_ahead_changes_nothing(model_and_prompt, sampling, monkeypatch):
    """Texts that come and go; snapshots and other forwards between the steps."""
    model, prompt = model_and_prompt
    prompts = [prompt, prompt[:3], prompt[::-1], prompt[5:]]
    monkeypatch.setattr(model, "can_overlap", False)
    want = together(model, prompts, sampling)
    monkeypatch.setattr(model, "can_overlap", True)
    assert together(model, prompts, sampling) == want

    def disturb(engine, i):
        if i % 5 == 1 and engine.active:
            engine._active[0].state.snapshot().close()
        if i % 5 == 3:
            state = model.state()
            model.forward([Span(state, np.array(prompt, np.int32), chain(len(prompt)), prefill=True)])
            state.close()

    assert together(model, prompts, sampling, between=disturb) == want
    stop = want[0][9]
    ended = together(model, prompts, sampling, eos=[stop])
    assert ended == [tokens[: tokens.index(stop) + 1] if stop in tokens else tokens for tokens in want]
