"""The MTP head as a drafter: it sees what is text and nothing else."""

from itertools import cycle

import numpy as np
import pytest
from compare import assert_same_bits
from golden import load, recorded
from written import run

from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.scheduling.draft_budget import DraftBudget
from dflash.decode.session import Session
from dflash.errors import Unsupported
from dflash.model.batch import Span
from dflash.model.recurrent_head import Unread

NAME = "qwen35-r2-mtp-F16"
SPECIAL = 480
"""Where the tile of 16 tokens begins that has the first special one."""


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    MTP().prepare(model)
    both = model.pools, model.attachments[MTP()].pools
    yield model
    for pools in both:
        assert (pools.free_pages, pools.free_slots) == (pools.pages, pools.slots)


def prompt(n=40):
    return recorded(NAME)["tokens"][:n].tolist()


def assert_read_as_at_once(model, head, session):
    """The head's cache has the bits of one that reads as much of the text at once."""
    read = session.drafter_state.state
    text, n = np.array(session.token_ids, np.int32), read.length
    state, other = model.state(), head.state()
    hidden = model.forward([Span.chain(state, text[:n], prefill=True, logits=False)]).hidden.copy()
    head.read_all([Unread(other, text[1 : n + 1], hidden)])
    for cache in (head.pools.k, head.pools.v):
        got, want = (cache[0, each.pages].reshape(-1, *cache.shape[3:])[:n] for each in (read, other))
        assert_same_bits("cache", got, want)
    state.close(), other.close()


def test_the_head_has_read_just_the_text(model):
    """Whatever was accepted, its cache is what reading the whole text at once gives."""
    session = Session(prompt(), max_tokens=40, strategy=Strategy(MTP(), Tree(12)))
    engine = Engine(model)
    engine.add(session)
    head = model.attachments[MTP()]
    while session.n_tokens < 30:
        engine.step()
    assert session.drafter_state.state.length > 40
    assert_read_as_at_once(model, head, session)
    engine.close()


def test_prompts_of_a_step_share_a_pass_and_steps_without_drafts_another(model, monkeypatch):
    """However seldom there are drafts, the head has read the text at last; its cache has the same bits."""
    head, passes, sizes = model.attachments[MTP()], [], cycle([0] * 20 + [3, 0, 2])
    run_head = head._run

    def counted(states, tokens, hidden, *, drafts=True):
        passes.append((drafts, [len(each) for each in tokens]))
        return run_head(states, tokens, hidden, drafts=drafts)

    monkeypatch.setattr(head, "_run", counted)
    monkeypatch.setattr(DraftBudget, "_choose", lambda budget, records, most, n: np.minimum(next(sizes), most))
    lengths = 13, 29, 40
    sessions = [Session(prompt(n), max_tokens=60, strategy=Strategy(MTP(), Chain(3))) for n in lengths]
    engine = Engine(model, draft_budget=True)
    engine.add_all(sessions)
    engine.step()
    assert passes == [(False, [n - 2 for n in lengths])], "all but the last token, whose next one is not known"
    while sessions[0].n_tokens < 50:
        engine.step()
    assert 0 < sum(not drafts for drafts, _ in passes) <= 6, "steps without drafts share passes"
    for session in sessions:
        assert session.drafter_state.state.length > session.n_tokens - 20
        assert_read_as_at_once(model, head, session)
    engine.close()


def drafts_of(model, session):
    """Return the draft of each step."""
    run(model, session)
    return [(step.draft.tokens.tolist(), step.tokens) for step in session.steps if step.tokens]


@pytest.mark.parametrize("n", [12, 39])
def test_a_snapshot_knows_the_prompt(model, n):
    """A saved state serves another session; without the drafter's part, drafts begin a token later and may differ."""
    strategy = Strategy(MTP(), Chain(3))
    want = drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy))
    reader = Session(prompt(n + 1), max_tokens=1, strategy=strategy)
    engine = Engine(model)
    engine.add(reader)
    engine.step()
    assert reader.n_prefilled == n
    snapshot = reader.snapshot()
    for _ in range(2):
        assert drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy, prefix=snapshot)) == want
    bare = drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy, prefix=snapshot.state))
    assert [t for _, tokens in bare for t in tokens] == [t for _, tokens in want for t in tokens]
    assert (bare[0][0] == []) == (n == 39)
    snapshot.close()
    engine.close()


@pytest.mark.parametrize("shape", [Chain(3), Tree(12)], ids=repr)
def test_drafts_from_a_smaller_vocabulary(model, shape):
    """The text is that of plain decoding, and what is drafted is known: the first tokens and the special ones."""
    want = Session(prompt(), max_tokens=20)
    run(model, want)
    session = Session(prompt(), max_tokens=20, strategy=Strategy(MTP(draft_vocab=90), shape))
    drafts = drafts_of(model, session)
    assert session.output_ids == want.output_ids
    draft_tokens = {token for tokens, _ in drafts for token in tokens}
    assert draft_tokens
    assert not draft_tokens & set(range(90, SPECIAL))


def test_a_model_without_a_head():
    with pytest.raises(Unsupported, match="no MTP block"):
        MTP().prepare(load("qwen35-r2-untied-F32"))
