"""Texts that are written for a comparison."""

from functools import cache

import numpy as np
from golden import chain

from dflash.decode.drafting.drafter import Plain
from dflash.decode.engine import Engine
from dflash.decode.session import Session
from dflash.model.batch import Span
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

N = 60
"""Tokens of the first of several texts; the others are shorter, so that they end one after another."""


def run(model, *sessions, **settings):
    """Their tokens; what fails is raised."""
    list(Engine(model, **settings).run(sessions))
    for session in sessions:
        if session.error is not None:
            raise session.error
    return tokens(sessions)


def tokens(sessions):
    return [session.output_ids for session in sessions]


def written(model, prompts, strategy, sampling, n=N, *, between=lambda engine, i: None, **settings):
    """Sessions that were written together, with something done between the steps."""
    sessions = [_session(prompt, i, strategy, sampling, n, **settings) for i, prompt in enumerate(prompts)]
    engine = Engine(model)
    for session in sessions:
        engine.add(session)
    i = 0
    while engine.busy:
        engine.step()
        between(engine, i)
        i += 1
    for session in sessions:
        if session.error is not None:
            raise session.error
    return sessions


def come_and_go(model, prompts, strategy, sampling):
    """Sessions that join and end while another is cancelled, and other forwards are made between the steps."""
    engine, sessions = Engine(model), []

    def begin():
        i = len(sessions)
        sessions.append(engine.add(_session(prompts[i], i, strategy, sampling, N)))

    begin()
    for i in range(400):
        engine.step()
        if i in {2, 4, 5}:
            begin()
        if i == 6:
            cancelled = engine.add(Session(prompts[0], sampling=sampling, strategy=strategy, max_tokens=900))
        if i == 9:
            cancelled.cancel()
        if i % 3 == 1:
            state = model.state()
            model.forward([Span(state, np.array(prompts[0], np.int32), chain(len(prompts[0])), prefill=True)])
            state.close()
        if i % 4 == 2 and engine.active:
            engine._active[0].state.snapshot().close()
            engine._active[0].drafter_state.snapshot().close()
        if not engine.busy and len(sessions) == 4:
            break
    return sessions


def demo_on_gpu(texts, **settings):
    """Cached demo model, prompts, and their plain continuations; each is computed once."""

    @cache
    def demo():
        loaded = load_model("demo", LoadSettings(device="cuda", **settings))
        return loaded.model, [loaded.tokenizer.encode(text) for text in texts]

    @cache
    def plain(sampling):
        return tokens(written(*demo(), Plain(), sampling))

    return demo, plain


def _session(prompt, i, strategy, sampling, n, **settings):
    return Session(prompt, sampling=sampling, max_tokens=n - 9 * i, strategy=strategy, **settings)
