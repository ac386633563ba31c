"""A small model as a drafter: it reads what is text, and it must know the same tokens."""

import pytest
from golden import load, path_of, recorded
from written import run

from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import Unsupported

NAME = "qwen35-r2-untied-F32"
ITSELF = DraftModel(str(path_of(NAME)))


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    ITSELF.prepare(model)
    yield model
    for pools in (model.pools, model.attachments[ITSELF].model.pools):
        assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


def prompt(n=40):
    return recorded(NAME)["tokens"][:n].tolist()


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.6, seed=3)], ids=str)
def test_a_model_drafts_for_itself(model, sampling):
    """It reads every token as the other does, so it is right every time, drawn tokens included."""
    session = Session(prompt(), sampling=sampling, max_tokens=40, strategy=Strategy(ITSELF, Chain(5)))
    run(model, session, chunk=7)
    assert session.n_accepted == session.n_drafted > 30


def test_a_long_prompt_is_read_in_parts(model):
    """More than can be pending, and more than a forward of the small model takes."""
    prompt = (recorded(NAME)["tokens"].tolist() * 30)[:1200]
    session = Session(prompt, max_tokens=12, strategy=Strategy(ITSELF, Chain(5)))
    run(model, session)
    assert session.n_accepted == session.n_drafted > 8


def test_a_snapshot_and_the_lack_of_one(model):
    """Without the small model's memory of a prefix it reads that itself."""
    strategy = Strategy(ITSELF, Chain(3))
    reader = Session(prompt(31), max_tokens=9, strategy=strategy)
    engine = Engine(model)
    engine.add(reader)
    for _ in range(3):
        engine.step()
    snapshot = reader.snapshot()
    assert snapshot.length > 31
    text = list(reader.token_ids)
    engine.close()
    for prefix in (snapshot, snapshot.state):
        session = Session(text, max_tokens=12, strategy=strategy, prefix=prefix)
        run(model, session)
        assert session.n_accepted == session.n_drafted > 8
    snapshot.close()


def test_a_small_model_with_another_vocabulary_is_refused():
    with pytest.raises(Unsupported, match="has another vocabulary"):
        DraftModel("demo").prepare(load(NAME))
