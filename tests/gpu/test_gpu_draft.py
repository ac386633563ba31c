"""The demo's draft on a GPU: what it proposes, and texts that are written with it, launched ahead or one step at a time."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from draft_oracle import Oracle, log_softmax
from drafts import SECOND, SMALL, SPARK
from random_drafts import SETTINGS, random_draft, read
from turns import Turns
from written import N, come_and_go, demo_on_gpu, tokens, written

from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.errors import PoolExhausted
from dflash.kernels.sample import SampleParams
from dflash.model.draft import DraftRequest, load_draft

TEXTS = [
    "def fibonacci(n):\n    if n < 2:\n        return n\n",
    "Once upon a time there was a king who",
    "import heapq\n\n\nclass Queue:\n",
    "The capital of France is",
]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3), Sampling(temperature=0.8, top_k=20, top_p=0.9, seed=4)]
SHAPES = [Chain(), Chain(5), Tree(22), Tree(40, width=8)]

demo, plain = demo_on_gpu(TEXTS, context=4096, sequences=6)


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
    draft, head = (model.attachments[drafter] for drafter in drafters)

    def free():
        return model.pools.free_pages, model.pools.free_slots, draft.free_slots, head.pools.free_slots

    before = free()
    yield model
    assert free() == before


def ids_of(n):
    ids = [token for prompt in demo()[1] for token in prompt]
    return (ids * (n // len(ids) + 1))[:n]


@pytest.mark.parametrize("law", [SampleParams(), SampleParams(1.0, seed=3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("n", [1, 40, 700])
def test_candidates_are_those_of_the_cpu(model, n, law):
    """Activations are halves here: probabilities move a little, and candidates that are as likely may change places."""
    (there, here), ids = drafts(), ids_of(n)
    states = [read(model, draft, ids) for draft in (there, here)]
    got, want = (
        draft.propose([DraftRequest(state, 77, 15, law, 64)])[0] for draft, state in zip((there, here), states, strict=True)
    )
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
    together = draft.propose(
        [DraftRequest(state, anchor, 15, SampleParams(1.0, seed=i), 16) for i, (state, anchor) in enumerate(asks)]
    )
    for i, (state, anchor) in enumerate(asks):
        (alone,) = draft.propose([DraftRequest(state, anchor, 15, SampleParams(1.0, seed=i), 16)])
        np.testing.assert_array_equal(alone.ids, together[i].ids)
        np.testing.assert_array_equal(alone.scores, together[i].scores)
        state.close()


def test_a_snapshot(model):
    draft, ids = drafts()[0], ids_of(200)
    state = read(model, draft, ids)
    want = draft.propose([DraftRequest(state, 5, 15, SampleParams(), 8)])[0]
    snapshot = state.snapshot()
    state.close()
    other = read(model, draft, ids_of(800)[300:])
    other.restore(snapshot)
    got = draft.propose([DraftRequest(other, 5, 15, SampleParams(), 8)])[0]
    np.testing.assert_array_equal(got.ids, want.ids)
    np.testing.assert_array_equal(got.scores, want.scores)
    other.close()
    snapshot.close()


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """A random DFlash 2 draft for the demo: its file, what it is, its weights."""
    path, config = tmp_path_factory.mktemp("draft") / "second.gguf", replace(SECOND, **SETTINGS, selector_top=16)
    return path, config, random_draft(path, config)


def proposed(model, path, config, weights, n=150):
    """Greedy proposals of a random draft after a text, and the oracle that has read it, too."""
    table = model.weights.host.matrix("token_embd.weight").unpacked()
    oracle = Oracle(config, weights, table, weights.get("output.weight", table))
    draft, features = load_draft(path, model, sequences=2), []
    assert draft.config.causal == config.causal
    state = read(model, draft, ids_of(n), cuts=(64,), features=features)
    other = read(model, draft, ids_of(70))
    oracle.read(np.concatenate(features))
    asks = [
        DraftRequest(other, 5, config.max_draft, SampleParams(1.0, seed=3), 1),
        DraftRequest(state, 77, config.max_draft, SampleParams(), 1),
    ]
    _, got = draft.propose(asks)
    for each in (state, other):
        each.close()
    draft.close()
    return got, oracle


@pytest.mark.parametrize("kind", ["own words", "from the anchor", "after it"])
def test_a_draft_with_fewer_tokens_and_a_walk(model, tmp_path, kind):
    """Positions up to the first where halves make the walk go another way."""
    if kind == "own words":
        config, n_head = replace(SMALL, **SETTINGS), 3000
    else:
        config, n_head = replace(SPARK, **SETTINGS, has_confidence=False), 16384
        config = replace(config, from_anchor=kind == "from the anchor", markov_rank=32)
    config = replace(config, causal=(True, True))  # a file does not say it: layers with a window are, but for DFlash 2
    weights = random_draft(path := tmp_path / "draft.gguf", config, n_head)
    got, oracle = proposed(model, path, config, weights)
    if kind == "own words":
        scores = log_softmax(oracle.block(77, config.block)[1][config.lead :])
        tokens = weights["d2t"][scores.argmax(axis=1)].tolist()
    else:
        tokens, steps, _ = oracle.walk(77, config.block)
        scores = np.array(steps)
    assert len(got) == config.max_draft
    same = 0
    for i, token in enumerate(tokens):
        if got.ids[i, 0] == token:
            same += 1
            assert abs(got.scores[i, 0] - scores[i].max()) < 0.05
        elif kind != "own words":
            break
    assert same > 2


def test_pairs_of_candidates(model, second):
    """The walk of the best pairs, and every score on the way."""
    path, config, weights = second
    got, oracle = proposed(model, path, config, weights)
    tokens, scores = oracle.select(77, config.block)
    assert got.edges.shape == (7, 16, 16)
    above, same = 0, 0
    for i, (token, wanted) in enumerate(zip(tokens, scores, strict=True)):
        row = got.edges[i, above]
        common = [j for j, own in enumerate(got.ids[i].tolist()) if own in wanted]
        assert len(common) > 13
        assert max(abs(row[j] - wanted[int(got.ids[i, j])]) for j in common) < 0.1
        above = int(row.argmax())
        if got.ids[i, above] != token:
            break
        same += 1
    assert same > 2


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1", "T 0.8 cut"])
@pytest.mark.parametrize("shape", [Chain(), Tree(12)], ids=repr)
def test_pairs_make_texts(model, second, shape, sampling, monkeypatch):
    """Outputs are plain though nearly all draft tokens are wrong, and draft tokens the same wherever they are shaped."""
    strategy, prompts = Strategy(DFlash(str(second[0])), shape), demo()[1][:2]
    steps = []
    for on_device in (True, False):
        if not on_device:
            monkeypatch.setattr(model.attachments[strategy.drafter], "draft_on_device", lambda wishes, anchors: None)
        sessions = written(model, prompts, strategy, sampling)
        assert tokens(sessions) == plain(sampling)[:2]
        steps.append([[step.draft.tokens.tolist() for step in session.steps] for session in sessions])
    for device, host in zip(*steps, strict=True):
        for ours, theirs in zip(device, host, strict=True):
            assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(4), Tree(12, depth=4)], ids=repr)
def test_a_small_model_drafts_on_the_gpu(model, shape, sampling):
    """The demo for itself: along a chain all that it proposes is right, but what the end of a text cuts off."""
    drafter, prompts = DraftModel("demo"), demo()[1][:2]
    sessions = written(model, prompts, Strategy(drafter, shape), sampling)
    assert tokens(sessions) == plain(sampling)[:2]
    for session in sessions:
        assert session.n_accepted > 0.6 * session.n_tokens
    model.attachments.pop(drafter).close()


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize(
    "drafter",
    [
        FirstOf(PromptLookup(), DFlash()),
        DFlash(draft_device="cpu"),
        Adaptive(Plain(), Strategy(DFlash(), Chain()), Strategy(DFlash(), Tree(22))),
        Adaptive(Strategy(MTP(), Chain(3)), DFlash()),
    ],
    ids=["first of", "draft on the CPU", "adaptive", "adaptive with MTP"],
)
def test_drafters_that_take_turns(model, drafter, sampling):
    """A draft that was launched ahead may not fit the next step."""
    n_accepted = 0
    for prompts in (demo()[1][:1], demo()[1]):
        sessions = written(model, prompts, Strategy(drafter), sampling)
        assert tokens(sessions) == plain(sampling)[: len(prompts)]
        n_accepted += sum(session.n_accepted for session in sessions)
    # who chooses may find that draft tokens do not pay where many texts share a step, but must have tried them in one
    assert n_accepted > 0


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["greedy", "T 1"])
@pytest.mark.parametrize("plan", ["....0", "0....................00", "01..10", "..?0?1..1?0", ".01"])
def test_every_way_from_step_to_step(model, plan, sampling, monkeypatch):
    """Plain steps and two drafters, that see all of them: the same draft tokens are right, launched ahead or not."""
    drafter, steps = Turns((DFlash(), MTP()), plan), []
    for prompts in (demo()[1][:1], demo()[1][:3]):
        for ahead in (True, False):
            monkeypatch.setattr(model, "can_overlap", ahead)
            sessions = written(model, prompts, Strategy(drafter), sampling)
            assert tokens(sessions) == plain(sampling)[: len(prompts)]
            steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
        assert steps[-2] == steps[-1]


def test_plain_steps_that_a_drafter_sees_are_launched_ahead(model, monkeypatch):
    launched, forward_overlapped = [], model.forward_overlapped

    def counted(spans, *, capture=()):
        launched.append(capture)
        return forward_overlapped(spans, capture=capture)

    monkeypatch.setattr(model, "forward_overlapped", counted)
    written(model, demo()[1][:1], Strategy(Turns((DFlash(),), "0.........")), Sampling())
    draft = model.attachments[DFlash()]
    assert len(launched) > 20
    assert set(launched) == {tuple(sorted(draft.config.target_layer_ids))}


def test_slots_run_out(model):
    draft = drafts()[0]
    states = [draft.state() for _ in range(draft.free_slots)]
    with pytest.raises(PoolExhausted):
        draft.state()
    for state in states:
        state.close()


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1", "T 0.8 cut"])
@pytest.mark.parametrize("shape", SHAPES, ids=repr)
def test_texts_are_those_of_plain_decoding(model, shape, sampling):
    for i, prompt in enumerate(demo()[1]):
        (session,) = written(model, [prompt], Strategy(DFlash(), shape), sampling, N - 9 * i)
        assert session.output_ids == plain(sampling)[i]
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
    """The same draft tokens, of which as many are right: launched ahead, launched step by step, and shaped on the host."""
    strategy, prompts = Strategy(DFlash(), shape), demo()[1][:2]
    steps = []
    for ahead, on_device in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(model, "can_overlap", ahead)
        if not on_device:
            monkeypatch.setattr(model.attachments[DFlash()], "draft_on_device", lambda wishes, anchors: None)
        sessions = written(model, prompts, strategy, sampling)
        steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1]
    assert steps[0] == steps[2]


def test_drafts_are_launched_ahead(model, monkeypatch):
    draft, followed = model.attachments[DFlash()], []
    follow = draft.launch_ahead
    monkeypatch.setattr(draft, "launch_ahead", lambda *asked: followed.append(follow(*asked)) or followed[-1])
    (session,) = written(model, demo()[1][:1], Strategy(DFlash()), Sampling())
    decoding = [step for step in session.steps if step.tokens]
    assert len(followed) >= len(decoding) - 2
    assert all(followed)


@pytest.mark.parametrize("shape", [Chain(), Tree(22)], ids=repr)
def test_texts_that_come_and_go(model, shape):
    assert tokens(come_and_go(model, demo()[1], Strategy(DFlash(), shape), SAMPLINGS[1])) == plain(SAMPLINGS[1])


def test_end_tokens_and_observers(model):
    prompts, want = demo()[1], plain(SAMPLINGS[0])
    stop = want[0][20]
    sessions = written(model, prompts, Strategy(DFlash(), Tree(22)), SAMPLINGS[0], eos=[stop])
    assert tokens(sessions) == [text[: text.index(stop) + 1] if stop in text else text for text in want]
    sessions = written(
        model, prompts, Strategy(DFlash()), SAMPLINGS[0], observer=lambda session, new: 1 if session.n_tokens > 20 else None
    )
    for session, text in zip(sessions, want, strict=True):
        assert session.output_ids == text[: len(session.output_ids)]
        assert 20 < len(session.output_ids) <= 21 + 16


def test_rules_and_log_probabilities_see_the_same_text(model):
    """Drafts that the host must see are made step by step, not ahead."""
    sampling = Sampling(temperature=1.0, presence_penalty=0.5, seed=7, logprobs=2)
    prompts = demo()[1][:2]
    want = tokens(written(model, prompts, Plain(), sampling))
    assert tokens(written(model, prompts, Strategy(DFlash(), Tree(22)), sampling)) == want
    seen = [lambda logits, history: logits]
    assert tokens(written(model, prompts, Strategy(DFlash()), sampling, processors=seen)) == want
