"""The demo's draft on a GPU: what it proposes, and texts that are written with it, launched ahead or one step at a time."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from drafts import SECOND, SMALL, SPARK, write_gguf
from golden import chain

from dflash.decode.drafters.adaptive import Adaptive
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.lookup import PromptLookup
from dflash.decode.drafters.mtp import MTP
from dflash.decode.engine import Engine
from dflash.decode.sampling import Sampling
from dflash.decode.session import Session
from dflash.decode.shapes import Chain, Tree
from dflash.decode.strategy import Plain, Strategy
from dflash.errors import PoolExhausted
from dflash.kernels.sample import Law
from dflash.model.batch import Span
from dflash.model.draft import Ask, load_draft
from dflash.model.draft.names import expected
from dflash.model.load import load_model

N = 60
TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time there was a king who",
    "import heapq\n\n\nclass Queue:\n",
    "The capital of France is",
]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=4)]
SHAPES = [Chain(), Chain(5), Tree(22), Tree(40, width=8)]


@cache
def demo():
    loaded = load_model("demo", device="cuda", context=4096, sequences=6)
    return loaded.model, [loaded.tokenizer.encode(text) for text in TEXTS]


@cache
def drafts():
    model, _ = demo()
    return load_draft("demo-draft", model, sequences=4), load_draft("demo-draft", model, device="cpu", sequences=4)


@pytest.fixture
def model():
    """The demo, whose memory is as it was after each test."""
    model, _ = demo()

    drafters = DFlash(), MTP()
    for drafter in drafters:
        drafter.prepare(model)
    draft, head = (model.companions[drafter] for drafter in drafters)

    def free():
        return model.pools.free_pages, model.pools.free_slots, draft.free_slots, head.pools.free_slots

    before = free()
    yield model
    assert free() == before


def read(model, draft, ids, cuts=()):
    """A state that has read a text in parts."""
    state, target = draft.state(), model.state()
    for start, stop in pairwise([0, *cuts, len(ids)]):
        tokens = np.array(ids[start:stop], np.int32)
        span = Span(target, tokens, chain(len(tokens)), whole=True, logits=False)
        out = model.forward([span], capture=draft.config.taps)
        draft.read(state, out.captured, slice(0, len(tokens)))
    target.close()
    return state


def ids_of(n):
    ids = [token for prompt in demo()[1] for token in prompt]
    return (ids * (n // len(ids) + 1))[:n]


@pytest.mark.parametrize("law", [Law(), Law(1.0, seed=3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("n", [1, 40, 700])
def test_candidates_are_those_of_the_cpu(model, n, law):
    """Activations are halves here: probabilities move a little, and candidates that are as likely may change places."""
    (there, here), ids = drafts(), ids_of(n)
    states = [read(model, draft, ids) for draft in (there, here)]
    got, want = (draft.propose([Ask(state, 77, 15, law, 64)])[0] for draft, state in zip((there, here), states, strict=True))
    for state in states:
        state.close()
    clear = want.scores[:, 0] - want.scores[:, 1] > 0.1
    assert clear.sum() > 5
    np.testing.assert_array_equal(got.ids[clear, 0], want.ids[clear, 0])
    for i in range(15):
        ours = dict(zip(got.ids[i].tolist(), got.scores[i].tolist(), strict=True))
        both = [(ours[token], score) for token, score in zip(want.ids[i].tolist(), want.scores[i].tolist(), strict=True)
                if token in ours]  # fmt: skip
        assert len(both) > 50
        assert max(abs(a - b) for a, b in both) < 0.1


def test_company_and_cuts_change_nothing(model):
    draft, ids = drafts()[0], ids_of(3 * 300)
    parts = [ids[:300], ids[300:340], ids[340:341], ids[400:900]]
    asks = [(read(model, draft, part), part[-1]) for part in parts]
    together = draft.propose([Ask(state, anchor, 15, Law(1.0, seed=i), 16) for i, (state, anchor) in enumerate(asks)])
    for i, (state, anchor) in enumerate(asks):
        (alone,) = draft.propose([Ask(state, anchor, 15, Law(1.0, seed=i), 16)])
        np.testing.assert_array_equal(alone.ids, together[i].ids)
        np.testing.assert_array_equal(alone.scores, together[i].scores)
        state.close()


def test_a_snapshot(model):
    draft, ids = drafts()[0], ids_of(200)
    state = read(model, draft, ids)
    want = draft.propose([Ask(state, 5, 15, Law(), 8)])[0]
    snapshot = state.snapshot()
    state.close()
    other = read(model, draft, ids_of(800)[300:])
    other.restore(snapshot)
    got = draft.propose([Ask(other, 5, 15, Law(), 8)])[0]
    np.testing.assert_array_equal(got.ids, want.ids)
    np.testing.assert_array_equal(got.scores, want.scores)
    other.close()
    snapshot.close()


SETTINGS = {"ffn": 256, "n_layers": 2, "heads": 4, "kv_heads": 2, "head_size": 64, "block": 8, "taps": (1, 3, 5)}
SETTINGS |= {"n_vocab": 16384, "width": 512, "mask": 16377, "windows": (64, 64), "causal": (False, False)}


def random_draft(path, config, n_head=16384):
    """A draft for the demo, with a head of its own if that is for fewer tokens."""
    rng, weights = np.random.default_rng(1), {}
    for name, shape in expected(config, config.n_vocab, n_head).items():
        values = rng.standard_normal(shape, dtype=np.float32)
        if name.endswith("norm.weight"):
            values = 1 + 0.2 * values
        elif name.endswith("conv_base"):
            values = 0.3 * values + np.array([1, 0], np.float32)[None, :, None]
        elif len(shape) == 2:
            values /= np.float32(np.sqrt(shape[1]))
        weights[name] = values
    weights["d2t"] = np.sort(rng.permutation(config.n_vocab)[:n_head]).astype(np.int64)
    own = {"output.weight", "d2t"} if n_head < config.n_vocab else set()
    for name in {"token_embd.weight", "output.weight", "d2t"} - own:
        del weights[name]
    return write_gguf(path, config, weights)


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A random DFlash 2 draft for the demo."""
    return random_draft(tmp_path_factory.mktemp("draft") / "second.gguf", replace(SECOND, **SETTINGS, selector_top=16))


@pytest.mark.parametrize("kind", ["own words", "from the anchor", "after it"])
@pytest.mark.parametrize("law", [Law(), Law(1.0, seed=3)], ids=["greedy", "drawn"])
def test_other_kinds_are_those_of_the_cpu(model, tmp_path, kind, law):
    """A draft with fewer tokens, and DSpark's walk; of rows after one where the two choose differently nothing is asked."""
    if kind == "own words":
        config, n_head = replace(SMALL, **SETTINGS), 3000
    else:
        config, n_head = replace(SPARK, **SETTINGS, has_confidence=False), 16384
        config = replace(config, from_anchor=kind == "from the anchor", markov_rank=32)
    path = random_draft(tmp_path / "draft.gguf", config, n_head)
    found = []
    for device in ("cuda", "cpu"):
        draft = load_draft(path, model, device=device, sequences=2)
        state, other = read(model, draft, ids_of(150)), read(model, draft, ids_of(70))
        asks = [Ask(state, 77, draft.config.most, law, 1), Ask(other, 5, draft.config.most, law, 1)]
        found.append(draft.propose(asks))
        state.close()
        other.close()
        draft.close()
    compared = 0
    for got, want in zip(*found, strict=True):
        assert len(got) == len(want) == draft.config.most
        for i in range(len(want)):
            if got.ids[i, 0] == want.ids[i, 0]:
                compared += 1
                assert abs(got.scores[i, 0] - want.scores[i, 0]) < 0.1
            elif kind != "own words":
                break
    assert compared > 8


@pytest.mark.parametrize("law", [Law(), Law(1.0, seed=3), Law(0.5, top_k=5, seed=4)], ids=["greedy", "T 1", "cut"])
def test_pairs_are_those_of_the_cpu(model, second, law):
    there, here = (load_draft(second, model, device=device, sequences=2) for device in ("cuda", "cpu"))
    ids, found = ids_of(150), []
    for draft in (there, here):
        state = read(model, draft, ids, cuts=(64,))
        found.append(draft.propose([Ask(state, 77, 7, law, 16)])[0])
        state.close()
    got, want = found
    for i in range(7):
        common = sorted(set(got.ids[i].tolist()) & set(want.ids[i].tolist()))
        assert len(common) > 13
        ours, theirs = ([list(each.ids[i]).index(token) for token in common] for each in (got, want))
        before = range(16)
        if i:
            shared = sorted(set(got.ids[i - 1].tolist()) & set(want.ids[i - 1].tolist()))
            before = [(list(got.ids[i - 1]).index(token), list(want.ids[i - 1]).index(token)) for token in shared]
        for a, b in before if i else [(0, 0)]:
            one, other = got.edges[i, a][ours], want.edges[i, b][theirs]
            both = np.isfinite(one) & np.isfinite(other)
            assert both.sum() >= np.isfinite(other).sum() - 2
            assert np.abs(one[both] - other[both]).max() < 0.1
        assert np.abs(got.scores[i][ours] - want.scores[i][theirs]).max() < 0.1


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1", "T 0.8 cut"])
@pytest.mark.parametrize("shape", [Chain(), Tree(12)], ids=repr)
def test_pairs_make_texts(model, second, shape, sampling, monkeypatch):
    """Nearly every guess of a random draft is wrong; texts are right, and guesses the same wherever they are shaped."""
    strategy, prompts = Strategy(DFlash(str(second)), shape), demo()[1][:2]
    steps = []
    for on_device in (True, False):
        if not on_device:
            monkeypatch.setattr(model.companions[strategy.drafter], "guess", lambda wishes, anchors: None)
        sessions = written(model, prompts, strategy, sampling)
        assert tokens(sessions) == plain(sampling)[:2]
        steps.append([[step.draft.tokens.tolist() for step in session.steps] for session in sessions])
    for device, host in zip(*steps, strict=True):
        for ours, theirs in zip(device, host, strict=True):
            assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(4), Tree(12, depth=4)], ids=repr)
def test_a_small_model_guesses(model, shape, sampling):
    """The demo for itself: along a chain all that it guesses is right, but what the end of a text cuts off."""
    drafter, prompts = DraftModel("demo"), demo()[1][:2]
    sessions = written(model, prompts, Strategy(drafter, shape), sampling)
    assert tokens(sessions) == plain(sampling)[:2]
    for session in sessions:
        assert session.n_accepted > 0.6 * session.n_tokens
    model.companions.pop(drafter).close()


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize(
    "drafter",
    [
        FirstOf(PromptLookup(), DFlash()),
        Adaptive(Plain(), Strategy(DFlash(), Chain()), Strategy(DFlash(), Tree(22))),
        Adaptive(Strategy(MTP(), Chain(3)), DFlash()),
    ],
    ids=["first of", "adaptive", "adaptive with MTP"],
)
def test_drafters_that_take_turns(model, drafter, sampling):
    """What was guessed ahead may be of no use in the next step."""
    for prompts in (demo()[1][:1], demo()[1]):
        sessions = written(model, prompts, Strategy(drafter), sampling)
        assert tokens(sessions) == plain(sampling)[: len(prompts)]
    assert sum(session.n_accepted for session in sessions) > 0


def test_slots_run_out(model):
    draft = drafts()[0]
    states = [draft.state() for _ in range(draft.free_slots)]
    with pytest.raises(PoolExhausted):
        draft.state()
    for state in states:
        state.close()


def written(model, prompts, strategy, sampling, n=N, *, between=lambda engine, i: None, **settings):
    sessions = [
        Session(p, sampling=sampling, max_tokens=n - 9 * i, strategy=strategy, **settings) for i, p in enumerate(prompts)
    ]
    engine = Engine(model)
    for session in sessions:
        engine.add(session)
    i = 0
    while engine.busy:
        engine.step()
        between(engine, i)
        i += 1
    assert [session.error for session in sessions] == [None] * len(sessions)
    return sessions


def tokens(sessions):
    return [session.tokens for session in sessions]


@cache
def plain(sampling):
    model, prompts = demo()
    return tokens(written(model, prompts, Plain(), sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1", "T 0.8 cut"])
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_texts_are_those_of_plain_decoding(model, shape, sampling):
    for i, prompt in enumerate(demo()[1]):
        (session,) = written(model, [prompt], Strategy(DFlash(), shape), sampling, N - 9 * i)
        assert session.tokens == plain(sampling)[i]
        assert session.n_accepted > 0


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1", "T 0.8 cut"])
@pytest.mark.parametrize("shape", [Chain(), Tree(15), Tree(22)], ids=repr)
def test_several_texts_together(model, shape, sampling):
    """Four chains of 16 rows are one pass of the target; four trees of 23 rows are two, and nothing is launched ahead."""
    sessions = written(model, demo()[1], Strategy(DFlash(), shape), sampling)
    assert tokens(sessions) == plain(sampling)


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(), Tree(22)], ids=repr)
def test_looking_ahead_changes_nothing(model, shape, sampling, monkeypatch):
    """The same guesses, of which as many are right: launched ahead, launched step by step, and shaped on the host."""
    strategy, prompts = Strategy(DFlash(), shape), demo()[1][:2]
    steps = []
    for ahead, on_device in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(model, "looks_ahead", ahead)
        if not on_device:
            monkeypatch.setattr(model.companions[DFlash()], "guess", lambda wishes, anchors: None)
        sessions = written(model, prompts, strategy, sampling)
        steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1]
    assert steps[0] == steps[2]


def test_guesses_are_launched_ahead(model, monkeypatch):
    draft, followed = model.companions[DFlash()], []
    follow = draft.follow
    monkeypatch.setattr(draft, "follow", lambda guesses: followed.append(follow(guesses)) or followed[-1])
    (session,) = written(model, demo()[1][:1], Strategy(DFlash()), Sampling())
    decoding = [step for step in session.steps if step.tokens]
    assert len(followed) >= len(decoding) - 2
    assert all(followed)


@pytest.mark.parametrize("shape", [Chain(), Tree(22)], ids=repr)
def test_texts_that_come_and_go(model, shape):
    """Sessions that join, end and are cancelled, and other forwards between the steps."""
    prompts, want = demo()[1], plain(SAMPLINGS[1])
    strategy, engine, sessions = Strategy(DFlash(), shape), Engine(model), []

    def begin(i):
        sessions.append(engine.add(Session(prompts[i], sampling=SAMPLINGS[1], max_tokens=N - 9 * i, strategy=strategy)))

    begin(0)
    for i in range(400):
        engine.step()
        if i in {2, 4, 5}:
            begin(len(sessions))
        if i == 6:
            cancelled = engine.add(Session(prompts[0], sampling=SAMPLINGS[1], strategy=strategy, max_tokens=900))
        if i == 9:
            cancelled.cancel()
        if i % 3 == 1:
            state = model.state()
            model.forward([Span(state, np.array(prompts[0], np.int32), chain(len(prompts[0])), whole=True)])
            state.close()
        if i % 4 == 2 and engine.active:
            engine._active[0].state.snapshot().close()
            engine._active[0].drafting.snapshot().close()
        if not engine.busy and len(sessions) == 4:
            break
    assert tokens(sessions) == want[: len(sessions)]


def test_end_tokens_and_observers(model):
    prompts, want = demo()[1], plain(SAMPLINGS[0])
    stop = want[0][20]
    sessions = written(model, prompts, Strategy(DFlash(), Tree(22)), SAMPLINGS[0], eos=[stop])
    assert tokens(sessions) == [text[: text.index(stop) + 1] if stop in text else text for text in want]
    sessions = written(
        model, prompts, Strategy(DFlash()), SAMPLINGS[0], observer=lambda session, new: 1 if session.n_tokens > 20 else None
    )
    for session, text in zip(sessions, want, strict=True):
        assert session.tokens == text[: len(session.tokens)]
        assert 20 < len(session.tokens) <= 21 + 16


def test_rules_and_log_probabilities_see_the_same_text(model):
    """What must be seen on the host is guessed step by step."""
    sampling = Sampling(temperature=1.0, presence_penalty=0.5, seed=7, logprobs=2)
    prompts = demo()[1][:2]
    want = tokens(written(model, prompts, Plain(), sampling))
    assert tokens(written(model, prompts, Strategy(DFlash(), Tree(22)), sampling)) == want
    seen = [lambda logits, history: logits]
    assert tokens(written(model, prompts, Strategy(DFlash()), sampling, processors=seen)) == want
