"""A small model as a drafter: no guess changes a text, it reads what is text, and it must know the same tokens."""

import pytest
from golden import load, path_of, recorded

from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.shapes import Chain, Tree
from dflash.decode.strategy import Strategy
from dflash.errors import Unsupported

NAME = "qwen35-r2-untied-F32"
ITSELF = DraftModel(str(path_of(NAME)))
COARSE = DraftModel(str(path_of("qwen35-r2-untied-Q4_0")))
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.6, seed=3),
    Sampling(temperature=1.0, top_p=0.9, presence_penalty=0.5, seed=1),
]


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    for drafter in (ITSELF, COARSE):
        drafter.prepare(model)
    all_pools = model.pools, *(small.model.pools for small in model.companions.values())
    yield model
    for pools in all_pools:
        assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


def prompt(n=40):
    return recorded(NAME)["tokens"][:n].tolist()


def run(model, *sessions, **settings):
    for _ in Engine(model, **settings).run(sessions):
        pass
    for session in sessions:
        if session.error is not None:
            raise session.error
    return [session.tokens for session in sessions]


@pytest.mark.parametrize("shape", [None, Chain(1), Chain(6), Tree(10, depth=3)], ids=str)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_no_guess_changes_the_text(model, sampling, shape):
    lengths = (40, 1, 2, 23)
    truths = [run(model, Session(prompt(n), sampling=sampling, max_tokens=30))[0] for n in lengths]
    for drafter in (ITSELF, COARSE):
        sessions = [Session(prompt(n), sampling=sampling, max_tokens=30, strategy=Strategy(drafter, shape)) for n in lengths]
        assert run(model, *sessions, chunk=11) == truths
        assert all(session.n_drafted > 0 for session in sessions)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=str)
def test_a_model_guesses_itself(model, sampling):
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
    text = list(reader.text)
    engine.close()
    for prefix in (snapshot, snapshot.state):
        session = Session(text, max_tokens=12, strategy=strategy, prefix=prefix)
        run(model, session)
        assert session.n_accepted == session.n_drafted > 8
    snapshot.close()


@pytest.mark.parametrize("after", [1, 4, 9])
def test_what_is_cancelled_is_given_back(model, after):
    engine = Engine(model, chunk=13)
    sessions = [Session(prompt(), max_tokens=50, strategy=Strategy(COARSE)) for _ in range(3)]
    for session in sessions:
        engine.add(session)
    for _ in range(after):
        engine.step()
    sessions[1].cancel()
    engine.step()
    engine.close()


def test_another_vocabulary():
    with pytest.raises(Unsupported, match="has another vocabulary"):
        DraftModel("demo").prepare(load(NAME))
