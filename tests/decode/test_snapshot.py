"""What was read once need not be read again: texts that begin where another one was."""

from dataclasses import dataclass

import numpy as np
import pytest
from oracles import naive
from toy import Toy, finish

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.draft import Draft
from dflash.decode.drafting.drafter import Drafter, Plain, Strategy
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.decode.snapshot import SessionSnapshot
from dflash.errors import DFlashError, PoolExhausted, RequestError
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

PROMPT, N = [7, 2, 2, 11, 5, 1], 40
SAMPLING = Sampling(temperature=0.9, seed=3)
OPEN = []


@dataclass(frozen=True)
class Learns(Drafter):
    """Drafts from what it has seen, whatever the text is: the more it knows, the longer its draft tokens."""

    remembers: bool = True

    def start(self, session, model, snapshot=None):
        return _Learning(self.remembers, list(snapshot.seen) if snapshot is not None else [])


class _Learning:
    capture = (2,)

    def __init__(self, remembers, seen):
        self.remembers, self.seen = remembers, seen

    def propose(self, max_draft):
        n = min(max_draft, len(self.seen) % 5)
        return Draft(self.seen[-n:] if n else ())

    def observe(self, step, out, rows):
        self.seen += [int(token) for token, _ in out.hidden[rows]]

    def snapshot(self):
        return _Kept(self.seen) if self.remembers else None

    def close(self):
        pass


class _Kept:
    def __init__(self, seen):
        self.seen = list(seen)
        OPEN.append(self)

    def close(self):
        OPEN.remove(self)


def broken_off(model, strategy, n_steps, prompt=PROMPT, chunk=2):
    """A session after some steps, and its snapshot there; then it goes on to its end."""
    engine = Engine(model, chunk=chunk)
    session = engine.add(Session(prompt, strategy=strategy, sampling=SAMPLING, max_tokens=N))
    for _ in range(n_steps):
        engine.step()
    snapshot, text, n_steps_before = session.snapshot(), list(session.token_ids), len(session.steps)
    finish(engine)
    return session, snapshot, text, n_steps_before


def run(toy, prompt, prefix, strategy=None, **settings):
    session = Session(prompt, strategy=Strategy.of(strategy), sampling=SAMPLING, prefix=prefix, **settings)
    list(Engine(toy).stream(session))
    return session


@pytest.mark.parametrize("n_steps", [1, 2, 3, 4, 9])
def test_a_session_continues_with_the_same_tokens_and_drafts(n_steps):
    toy, strategy = Toy(), Strategy(Learns())
    first, snapshot, text, n_steps_before = broken_off(toy, strategy, n_steps)
    assert snapshot.token_ids == text[: snapshot.length]
    for _ in range(2):
        again = run(toy, text, snapshot, strategy, max_tokens=N - (len(text) - len(PROMPT)))
        assert again.token_ids == first.token_ids
        assert sum(step.prefilled for step in again.steps) == len(text) - 1 - snapshot.length
        left = [(step.draft, step.tokens) for step in first.steps[n_steps_before:] if step.tokens]
        assert [(step.draft, step.tokens) for step in again.steps if step.tokens] == left
        assert any(len(draft) for draft, _ in left)
    snapshot.close()
    assert (toy.leaked, OPEN) == ((0, 0, 0), [])


@pytest.mark.parametrize("other", [Plain(), Strategy(Learns(remembers=False))], ids=repr)
def test_a_drafter_without_that_memory_begins_at_its_end(other):
    toy = Toy()
    first, snapshot, text, _ = broken_off(toy, Strategy(Learns()), 6)
    again = run(toy, text, snapshot, other, max_tokens=N - (len(text) - len(PROMPT)))
    assert again.token_ids == first.token_ids
    assert sum(step.prefilled for step in again.steps) == 0
    snapshot.close()


def test_a_longer_prompt():
    toy, more = Toy(), [3, 3, 9, 0, 4]
    _, snapshot, text, _ = broken_off(toy, Strategy(Learns()), 6)
    again = run(toy, text + more, snapshot, Strategy(Learns()), max_tokens=9)
    assert again.output_ids == naive(toy, text + more, SAMPLING, 9, seed=SAMPLING.seed)
    assert sum(step.prefilled for step in again.steps) == len(more)
    snapshot.close()
    assert (toy.leaked, OPEN) == ((0, 0, 0), [])


def test_what_it_does_not_fit_is_refused():
    toy = Toy()
    _, snapshot, text, _ = broken_off(toy, Plain(), 6)
    with pytest.raises(RequestError, match=r"prefix: has read token 2 at 1, where the prompt has 4"):
        Session([7, 4, *text], prefix=snapshot)
    with pytest.raises(RequestError, match="must leave the last"):
        Session(text[:-1], prefix=snapshot)
    snapshot.close()
    with pytest.raises(DFlashError, match="is not running"):
        Session(PROMPT).snapshot()


def test_memory_that_is_not_there_is_not_kept():
    toy = Toy()
    engine = Engine(toy)
    session = engine.add(Session(PROMPT, strategy=Strategy(Learns())))
    engine.step()

    def fails():
        raise PoolExhausted("no slot")

    session.drafter_state.snapshot = fails
    with pytest.raises(PoolExhausted):
        SessionSnapshot(session)
    engine.close()
    assert toy.leaked == (0, 0, 0)


@pytest.mark.parametrize("drafter", [DFlash("demo-draft"), MTP(), PromptLookup()], ids=repr)
def test_drafters_of_the_demo_continue_with_the_same_drafts(drafter):
    model = load_model("demo", LoadSettings(device="cpu", threads=1, context=1024, sequences=2)).model
    prompt = [int(token) for token in np.random.default_rng(2).integers(0, 16000, 160)] * 2
    strategy = Strategy(drafter)
    for n_steps in (1, 3, 7):
        first, snapshot, text, n_steps_before = broken_off(model, strategy, n_steps, prompt, chunk=256)
        again = run(model, text, snapshot, strategy, max_tokens=N - (len(text) - len(prompt)))
        snapshot.close()
        assert again.token_ids == first.token_ids
        left = [(step.draft, step.tokens) for step in first.steps[n_steps_before:] if step.tokens]
        assert [(step.draft, step.tokens) for step in again.steps if step.tokens] == left
        assert any(len(draft) for draft, _ in left)
    assert (model.pools.free_pages, model.pools.free_slots) == (model.pools.pages, model.pools.slots)
    model.attachments.close()
