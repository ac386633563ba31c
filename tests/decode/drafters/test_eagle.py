"""An EAGLE-3 head as a drafter: no text changes, and it sees what is text and nothing else."""

import numpy as np
import pytest
from compare import assert_same_bits
from eagle_heads import write_fitted, write_speculators
from golden import load, recorded
from scarce import run_in
from written import run

from dflash.decode.drafters.eagle import Eagle3
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafters.suffix import SuffixDecoding
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.engine import Engine
from dflash.decode.sampling.params import Sampling
from dflash.decode.session import Session
from dflash.errors import RequestError
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.recurrent_head import HeadRequest, Unread

NAME = "qwen35-r2-mtp-F16"
LAYERS = {"llama-untied-Q8_0": (0, 1), "qwen3moe-tiny-Q8_0": (1,), "qwen3next-tiny-Q8_0": (0, 1, 2), NAME: (0, 2, 3)}
"""Targets, and the layers that the heads read."""
SAMPLINGS = [
    Sampling(),
    Sampling(temperature=0.8, seed=3),
    Sampling(temperature=1, top_p=0.9, repetition_penalty=1.2, seed=4),
]


def eagle(folder, name=NAME, **case):
    """A head with random weights for a golden model."""
    config = load(name, kv="f16").config
    sizes = {"hidden_size": config.width, "vocab_size": config.n_vocab, "layers": LAYERS[name]}
    return Eagle3(str(write_speculators(folder / f"head-{name}", **(sizes | case))))


@pytest.fixture
def model():
    model = load(NAME, kv="f16")
    yield model
    model.attachments.close()
    assert (model.pools.free_pages, model.pools.free_slots) == (model.pools.pages, model.pools.slots)


def prompt(n=40, name=NAME):
    return recorded(name)["tokens"][:n].tolist()


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 0.8", "penalties"])
def test_texts_are_those_of_plain_decoding(name, sampling, tmp_path):
    """In chains and trees, with others before it, together in one batch."""
    model, drafter = load(name, kv="f16"), eagle(tmp_path, name, draft=160)
    strategies = [Strategy(drafter), Strategy(drafter, Chain(6)), Strategy(drafter, Tree(9))]
    strategies += [Strategy(FirstOf(PromptLookup(), drafter)), Strategy(FirstOf(SuffixDecoding(), drafter))]
    (want,) = run(model, Session(prompt(name=name), sampling=sampling, max_tokens=30))
    sessions = [Session(prompt(name=name), sampling=sampling, max_tokens=30, strategy=strategy) for strategy in strategies]
    assert run(model, *sessions) == [want] * len(sessions)
    assert all(session.n_drafted > 30 for session in sessions[:3])
    head = model.attachments[drafter]
    assert (head.pools.free_pages, head.pools.free_slots) == (head.pools.pages, head.pools.slots)
    model.attachments.close()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 0.8", "penalties"])
def test_drafts_of_a_head_that_is_often_right(model, sampling, tmp_path):
    """Accepted tokens change no text either, nor what the head drafts after them."""
    (want,) = run(model, Session(prompt(), sampling=sampling, max_tokens=60))
    drafter = Eagle3(str(write_fitted(tmp_path / "head", model, np.array(prompt() + want, np.int32))))
    strategies = [Strategy(drafter, Chain(1)), Strategy(drafter, Chain(4)), Strategy(drafter, Tree(12))]
    sessions = [Session(prompt(), sampling=sampling, max_tokens=60, strategy=strategy) for strategy in strategies]
    assert run(model, *sessions) == [want] * 3
    assert min(session.n_accepted for session in sessions) > 15


def test_the_head_has_read_just_the_text(model, tmp_path):
    """Whatever was accepted, its cache is what reading the whole text at once gives."""
    (known,) = run(model, Session(prompt(), max_tokens=40))
    drafter = Eagle3(str(write_fitted(tmp_path / "head", model, np.array(prompt() + known, np.int32))))
    session, engine = Session(prompt(), max_tokens=40, strategy=Strategy(drafter, Tree(12))), Engine(model)
    engine.add(session)
    while session.n_tokens < 30:
        engine.step()
    head, drafter_state = model.attachments[drafter], session.drafter_state
    text, n = np.array(session.token_ids, np.int32), drafter_state.state.length
    assert n > 40
    assert session.n_accepted > 5
    state, other = model.state(), head.state()
    out = model.forward([Span.chain(state, text[:n], prefill=True, logits=False)], capture=head.target_layer_ids)
    head.read_all([Unread(other, text[1 : n + 1], *head.features_at(head.features_of(out), [slice(0, n)], prompt=True))])
    for cache in (head.pools.k, head.pools.v):
        got, want = (cache[0, each.pages].reshape(-1, *cache.shape[3:])[:n] for each in (drafter_state.state, other))
        assert_same_bits("cache", got, want)
    for each in (state, other, engine):
        each.close()


def drafts_of(model, session):
    """The drafts and tokens of each step."""
    run(model, session)
    return [(step.draft.tokens.tolist(), step.tokens) for step in session.steps if step.tokens]


@pytest.mark.parametrize("n", [12, 39])
def test_a_snapshot_knows_the_prompt(model, tmp_path, n):
    """A session that begins with the state of another drafts as if it had read the prompt itself."""
    strategy = Strategy(eagle(tmp_path), Chain(3))
    want = drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy))
    reader, engine = Session(prompt(n + 1), max_tokens=1, strategy=strategy), Engine(model)
    engine.add(reader)
    engine.step()
    snapshot = reader.snapshot()
    for _ in range(2):
        assert drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy, prefix=snapshot)) == want
    bare = drafts_of(model, Session(prompt(), max_tokens=20, strategy=strategy, prefix=snapshot.state))
    assert [t for _, tokens in bare for t in tokens] == [t for _, tokens in want for t in tokens]
    snapshot.close()
    engine.close()


def test_sessions_that_outgrow_the_pages(model, tmp_path):
    """Preempted sessions continue from states that were copied to the host."""
    strategy = Strategy(eagle(tmp_path), Chain(3))
    text = (8 * prompt())[:300]

    def sessions():
        return [Session(text[i : i + 170], max_tokens=100, strategy=strategy, sampling=SAMPLINGS[i]) for i in range(3)]

    want, got = sessions(), sessions()
    for session in want:
        run(model, session)
    run_in(model, 3, got)
    assert [session.output_ids for session in got] == [session.output_ids for session in want]
    assert sum(session.n_preempted for session in got) > 0


def test_a_state_that_was_saved_drafts_as_before(model, tmp_path):
    """The bytes of a snapshot, as the prefix cache writes them to disk, give the same drafts."""
    drafter = eagle(tmp_path)
    session, engine = Session(prompt(), max_tokens=9, strategy=Strategy(drafter, Chain(3))), Engine(model)
    engine.add(session)
    while session.n_tokens < 4:
        engine.step()
    head, drafter_state = model.attachments[drafter], session.drafter_state
    snapshot = drafter_state.snapshot()
    restored = drafter.snapshot_from_host(model, snapshot.host_arrays())
    found = []
    for each in (snapshot, restored):
        state = head.state()
        state.restore(each.cache)
        n = len(each.unread)
        tokens = np.array(session.token_ids[-n:], np.int32)
        found += head.propose([HeadRequest(state, tokens, each.unread, 3, SampleParams(), 50, 8)])
        state.close()
        each.close()
    assert_same_bits("scores", *(each.scores for each in found))
    engine.close()


@pytest.mark.parametrize("shape", [Chain(3), Tree(12)], ids=repr)
def test_drafts_are_of_the_draft_vocabulary(model, tmp_path, shape):
    drafter = eagle(tmp_path, draft=64)
    session = Session(prompt(), max_tokens=20, strategy=Strategy(drafter, shape))
    drafted = {token for tokens, _ in drafts_of(model, session) for token in tokens}
    assert len(drafted) > 8
    assert drafted <= set(model.attachments[drafter]._targets.tolist())


def test_names_with_eagle3_need_a_draft():
    folder = {"draft": "head"}
    assert Strategy.named("eagle3:4", **folder) == Strategy(Eagle3("head"), Chain(4))
    assert Strategy.named("eagle3-tree:9", **folder) == Strategy(Eagle3("head"), Tree(9))
    assert Strategy.named("first(suffix, eagle3)", **folder) == Strategy(FirstOf(SuffixDecoding(), Eagle3("head")))
    with pytest.raises(RequestError, match="eagle3 needs a draft, the folder of an EAGLE-3 head"):
        Strategy.named("eagle3")
