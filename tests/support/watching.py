"""Ways to decode one text, and what must hold of each whatever watches over it."""

import numpy as np
from oracles import Oracle

from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.session import Session

WAYS = ["plain", "chain", "tree"]


def way(kind, text, *, size=9):
    """Return a strategy whose draft tokens come from `text`, prompt included, with some errors."""
    oracle = Oracle((tuple(text),), kind, p=0.9, size=size, greedy_for_room=True)
    return Plain() if kind == "plain" else Strategy(oracle)


def written(toy, prompt, strategy, *, max_tokens=40, **settings):
    """Run one session to its end, and check that what was handed on is what there is."""
    seen = []

    def observe(session, tokens):
        seen.extend(tokens)

    session = Session(prompt, strategy=strategy, max_tokens=max_tokens, observer=observe, **settings)
    steps = list(Engine(toy).stream(session))
    assert steps == session.steps
    assert [token for step in steps for token in step.tokens] == session.output_ids == seen
    assert all(len(step.rows) == len(step.tokens) for step in steps)
    assert [step.finish for step in steps] == [None] * (len(steps) - 1) + [session.finish_reason]
    assert toy.leaked == (0, 0, 0)
    return session


def script(n_prompt, text, end=0, n_vocab=13):
    """A law by which `text` follows any prompt of that length, and then the end token, whatever was written."""

    def law(seen):
        place = len(seen) - n_prompt
        logits = np.zeros(n_vocab)
        logits[text[place] if place < len(text) else end] = 9
        return logits

    return law
