"""Steps in which sequences end are launched ahead for the others, whose tokens stay the same."""

import pytest
from golden import load

from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=3)], ids=["greedy", "T 1"])
def test_rows_of_sequences_that_end_are_left_out(sampling, monkeypatch):
    model = load("qwen35-r2-untied-F32", device="cuda")
    shorter, forward = [], model.forward_overlapped

    def counted(spans, **rest):
        shorter.append(len(model.latest.spans) - len(spans))
        return forward(spans, **rest)

    monkeypatch.setattr(model, "forward_overlapped", counted)

    def texts(ahead):
        monkeypatch.setattr(model, "can_overlap", ahead)
        sessions = [Session([i + 1, 5], sampling=sampling, max_tokens=n) for i, n in enumerate([7, 3, 8, 5])]
        list(Engine(model, max_active=3).run(sessions))
        return [session.output_ids for session in sessions]

    together = texts(ahead=True)
    assert sum(map(bool, shorter)) >= 2
    assert texts(ahead=False) == together
