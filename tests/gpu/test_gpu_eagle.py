"""EAGLE-3 heads on a GPU: the recorded results, and texts that are written with them."""

from functools import cache
from itertools import cycle

import numpy as np
import pytest
from compare import assert_close
from draft_oracle import log_softmax
from eagle_heads import CASES, TARGET, features, write_fitted, write_speculators
from golden import FOLDER, load, recorded
from written import come_and_go, run, tokens, written

from dflash.decode.drafters.eagle import Eagle3
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.decode.scheduling.draft_budget import DraftBudget
from dflash.decode.session import Session
from dflash.kernels.gpu import device
from dflash.kernels.sample import SampleParams
from dflash.model.eagle.load import load_eagle
from dflash.model.recurrent_head import HeadRequest, Unread

GOLDEN, N = np.load(FOLDER / "eagle3.npz"), 20
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]
RATIO = 6e-3
"""Activations are halves."""


@pytest.fixture(scope="module")
def model():
    model = load(TARGET, kv="f16", device="cuda")
    before = model.pools.free_pages, model.pools.free_slots
    yield model
    model.attachments.close()
    assert (model.pools.free_pages, model.pools.free_slots) == before


def captured(n, seed, layers):
    """Recorded features as a forward returns them, with rows of other sequences between them."""
    parts = np.split(features(N + 4, seed)[:n], len(layers), axis=1)
    return {layer: device.array(np.repeat(part, 2, axis=0)) for layer, part in zip(layers, parts, strict=True)}


def hidden_of(head, n, seed):
    """Hidden states of the first recorded positions, observed in two calls."""
    given, rows = captured(n, seed, head.target_layer_ids), list(range(0, 2 * n, 2))
    return head.join(head.features_at(given, [rows[: n // 2], rows[n // 2 :]], prompt=True))


@pytest.mark.parametrize(("seed", "name"), list(enumerate(CASES)))
def test_positions_and_a_chain_as_recorded(model, seed, name, tmp_path):
    """Scores are those of the reference module; near ties of a random model may go another way."""
    head = load_eagle(model, write_speculators(tmp_path / "head", seed, **CASES[name]))
    want = {key.rpartition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.startswith(f"{name}/")}
    text, ids = want["tokens"], known_ids(name)
    for i, logits in zip(range(0, N, 6), want["logits"], strict=True):
        state = head.state()
        hidden = hidden_of(head, i + 1, seed)
        (found,) = head.propose([HeadRequest(state, text[1 : i + 2], hidden, 1, SampleParams(), i + 2, 64)])
        check(found, 0, logits, ids)
        state.close()
    state = head.state()
    hidden = hidden_of(head, N, seed)
    head.read_all([Unread(state, text[1:N], hidden[: N - 1])])
    (found,) = head.propose([HeadRequest(state, text[N:], hidden[N - 1 :], 4, SampleParams(), N + 1, 64)])
    sure = [np.diff(np.sort(row)[-2:])[0] > 0.05 for row in want["chain_logits"]]
    for i in range(4 if all(sure) else sure.index(False)):
        assert found.ids[i, 0] == want["chain"][i]
        check(found, i, want["chain_logits"][i], ids)
    state.close()
    head.close()


def known_ids(name):
    n = CASES[name]["draft"]
    chosen = next(key for key in (name,) if key)
    return None if n == 512 else ids_of(chosen)


@cache
def ids_of(name):
    from eagle_heads import settings, tensors

    found = tensors(settings(**CASES[name]), list(CASES).index(name))["d2t"]
    return found + np.arange(len(found))


def check(found, position, logits, ids):
    expected = log_softmax(logits)
    at = {int(token): score for token, score in zip(range(len(logits)) if ids is None else ids, expected, strict=True)}
    got = found.ids[position][:48]
    assert_close("scores", found.scores[position][:48], np.array([at[int(token)] for token in got]), RATIO)


@cache
def prompts():
    text = recorded(TARGET)["tokens"].tolist()
    return [text[:20], text[:1], text[::-1], (8 * text)[:300]]


@cache
def folder(kind, base):
    """A head with random weights and a small vocabulary, or one that knows a text, for the golden model."""
    if kind == "random":
        return write_speculators(base / kind, draft=128)
    model = load(TARGET, kv="f16")
    (known,) = run(model, Session(prompts()[0], max_tokens=60))
    return write_fitted(base / kind, model, np.array(prompts()[0] + known, np.int32))


@pytest.fixture(params=["random", "fitted"])
def drafter(request, tmp_path_factory):
    return Eagle3(str(folder(request.param, tmp_path_factory.getbasetemp())))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(1), Chain(4), Tree(8, depth=3)], ids=repr)
def test_texts_are_those_of_plain_decoding(model, drafter, shape, sampling):
    """Alone and together; drafts launched ahead, step by step, and shaped on the host: the same steps."""
    want = tokens(written(model, prompts(), Plain(), sampling))
    strategy, steps = Strategy(drafter, shape), []
    drafter.prepare(model)
    with pytest.MonkeyPatch.context() as patch:
        for ahead, on_device in ((True, True), (False, True), (False, False)):
            patch.setattr(model, "can_overlap", ahead)
            if not on_device:
                patch.setattr(model.attachments[drafter], "draft_on_device", lambda requests, anchors, unread: None)
            sessions = written(model, prompts()[:2], strategy, sampling)
            assert tokens(sessions) == want[:2]
            steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1]
    assert steps[0] == steps[2]
    assert tokens(written(model, prompts(), strategy, sampling)) == want


def test_a_head_that_is_often_right(model, tmp_path):
    """The same drafts are accepted as on the CPU."""
    strategy = Strategy(Eagle3(str(folder("fitted", tmp_path))), Chain(2))
    on_cpu, session = (Session(prompts()[0], max_tokens=60, strategy=strategy) for _ in range(2))
    run(load(TARGET, kv="f16"), on_cpu)
    run(model, session)
    assert session.output_ids == on_cpu.output_ids
    assert session.n_accepted > 15
    load(TARGET, kv="f16").attachments.close()


@pytest.mark.parametrize("shape", [Chain(3), Tree(8, depth=3)], ids=repr)
def test_texts_that_come_and_go(model, drafter, shape):
    want = tokens(written(model, prompts(), Plain(), SAMPLINGS[1]))
    assert tokens(come_and_go(model, prompts(), Strategy(drafter, shape), SAMPLINGS[1])) == want


def test_a_draft_budget_changes_no_text(model, drafter, monkeypatch):
    """Every size is chosen in turn, and drafts that were launched ahead are used."""
    drafter.prepare(model)
    head, used, sizes = model.attachments[drafter], [], cycle(np.repeat([3, 1, 0, 2], 5).tolist())

    def ready(requests, anchors, function=head.ready):
        used.append(function(requests, anchors))
        return used[-1]

    monkeypatch.setattr(DraftBudget, "_choose", lambda budget, records, most, n: np.minimum(next(sizes), most))
    monkeypatch.setattr(head, "ready", ready)
    strategy = Strategy(drafter, Chain(3))
    sessions = [Session(prompt, max_tokens=50, strategy=strategy, sampling=SAMPLINGS[1]) for prompt in prompts()[:3]]
    want = [Session(prompt, max_tokens=50, sampling=SAMPLINGS[1]) for prompt in prompts()[:3]]
    assert run(model, *sessions, draft_budget=True) == run(model, *want)
    assert {step.drafted for session in sessions for step in session.steps} >= {0, 1, 2, 3}
    assert sum(one is not None for one in used) > len(used) // 2
