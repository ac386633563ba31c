"""Drafters with a model of their own, a small one or a head: no draft token changes a text, and nothing leaks."""

from typing import NamedTuple

import pytest
from golden import load, path_of, recorded
from written import run

from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Drafter, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session

SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6, seed=3),
    Sampling(temperature=1.0, top_p=0.9, presence_penalty=0.5, seed=1),
]
SHAPES = [None, Chain(1), Chain(7), Tree(12), Tree(9, depth=4)]


class Kind(NamedTuple):
    """A drafter for a model."""

    name: str
    drafter: Drafter


KINDS = {
    "MTP": Kind("qwen35-r2-mtp-F16", MTP()),
    "itself": Kind("qwen35-r2-untied-F32", DraftModel(str(path_of("qwen35-r2-untied-F32")))),
    "coarse": Kind("qwen35-r2-untied-F32", DraftModel(str(path_of("qwen35-r2-untied-Q4_0")))),
}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.fixture
def model(kind):
    model = load(kind.name, kv="f16")
    kind.drafter.prepare(model)
    companion = model.attachments[kind.drafter]
    both = model.pools, getattr(companion, "model", companion).pools
    yield model
    for pools in both:
        assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


def sessions_of(kind, *lengths, strategy, **settings):
    text = recorded(kind.name)["tokens"].tolist()
    return [Session(text[:n], strategy=strategy, **settings) for n in lengths]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_no_draft_changes_the_text(kind, model, sampling, shape):
    """Read together, in chunks."""
    settings = {"sampling": sampling, "max_tokens": 30}
    plain = sessions_of(kind, 40, 1, 2, 23, strategy=Strategy(), **settings)
    drafted = sessions_of(kind, 40, 1, 2, 23, strategy=Strategy(kind.drafter, shape), **settings)
    truths = [run(model, session)[0] for session in plain]
    assert run(model, *drafted, chunk=11) == truths
    assert all(session.n_drafted > 0 for session in drafted)


@pytest.mark.parametrize("after", [1, 4, 9])
def test_what_is_cancelled_is_given_back(kind, model, after):
    engine = Engine(model, chunk=13)
    sessions = sessions_of(kind, 40, 40, 40, strategy=Strategy(kind.drafter), max_tokens=50)
    for session in sessions:
        engine.add(session)
    for _ in range(after):
        engine.step()
    sessions[1].cancel()
    engine.step()
    engine.close()
