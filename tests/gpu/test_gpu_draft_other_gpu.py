"""A draft model on another GPU than its target: the same candidates, drafts and texts as on the target's GPU."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from devices_watched import watch
from drafts import SECOND, SPARK
from gpu_count import is_emulated, n_devices
from random_drafts import SETTINGS, random_draft, read, read_by_all
from written import come_and_go, demo_on_gpu, tokens, written

import dflash
from dflash.decode.drafters.adaptive.drafter import Adaptive
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.draft_model import DraftModel
from dflash.decode.drafters.first_of import FirstOf
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafters.prompt_lookup import PromptLookup
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.errors import Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.draft import DraftRequest, load_draft

pytestmark = pytest.mark.skipif(n_devices() < 2, reason="fewer than two GPUs")

TEXTS = ["def fibonacci(n):\n    if n < 2:\n        return n\n", "Once upon a time", "import heapq\n\n", "The capital"]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]
OTHER = "cuda:1"

N = 14 if is_emulated() else 60
"""Tokens of the shortest text."""

demo, plain_of_60 = demo_on_gpu(TEXTS, context=2048, sequences=6)


@cache
def plain(n, sampling):
    model, prompts = demo()
    return tokens(written(model, prompts[:n], Plain(), sampling, N + 9 * (n - 1)))


@pytest.fixture(autouse=True)
def launches(monkeypatch):
    return watch(monkeypatch)


@cache
def files(folder):
    """Random drafts for the demo: DFlash 2, and DSpark with a confidence head."""
    kinds = {"dflash2": replace(SECOND, **SETTINGS, selector_top=16)}
    kinds["dspark"] = replace(SPARK, **SETTINGS | {"causal": (True, True)}, markov_rank=32, from_anchor=True)
    for kind, config in kinds.items():
        random_draft(folder / f"{kind}.gguf", config)
    return {"demo": "demo-draft", **{kind: str(folder / f"{kind}.gguf") for kind in kinds}}


@pytest.fixture(params=["demo", "dflash2", "dspark"])
def draft(request, tmp_path_factory):
    return files(tmp_path_factory.getbasetemp())[request.param]


def ids_of(n):
    ids = [token for prompt in demo()[1] for token in prompt]
    return (ids * (n // len(ids) + 1))[:n]


def drafts(name):
    model, _ = demo()
    return [load_draft(name, model, sequences=4, device=device) for device in ("cuda", OTHER)]


@pytest.mark.parametrize("n", [1, 40, 700])
def test_candidates_after_prompts_of_every_length(draft, n):
    found, both = [], drafts(draft)
    states = read_by_all(demo()[0], both, ids_of(n), cuts=[min(64, n)] if n > 64 else ())
    for each, state in zip(both, states, strict=True):
        asked = [DraftRequest(state, 77, each.config.max_draft, params, 8) for params in (SampleParams(),)]
        found.append(each.propose(asked)[0])
        state.close()
        each.close()
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_snapshots_are_of_the_gpu_of_the_draft():
    model, (one, other) = demo()[0], drafts("demo-draft")
    found = []
    for draft in (one, other):
        state = read(model, draft, ids_of(200))
        snapshot = state.snapshot()
        saved = draft._rings.snapshot_from_host(snapshot.host_arrays())
        state.close()
        for kept in (snapshot, saved):
            state = read(model, draft, ids_of(300)[200:])
            state.restore(kept)
            found.append(draft.propose([DraftRequest(state, 5, 15, SampleParams(), 8)])[0])
            state.close()
            kept.close()
        draft.close()
    for each in found[1:]:
        np.testing.assert_array_equal(each.ids, found[0].ids)
        np.testing.assert_array_equal(each.scores, found[0].scores)


def steps_of(model, prompts, strategy, sampling):
    """Texts, and draft tokens with the accepted ones of every step."""
    sessions = written(model, prompts, strategy, sampling, N + 9 * (len(prompts) - 1))
    steps = [[(step.draft.tokens.tolist(), step.tokens, step.accepted) for step in each.steps] for each in sessions]
    return tokens(sessions), steps


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(), Chain(5), Tree(22)], ids=repr)
@pytest.mark.parametrize("n", [1, 3], ids=["one text", "three texts"])
def test_drafts_and_texts(draft, shape, sampling, n, launches, monkeypatch):
    """Launched ahead and one step at a time."""
    model, prompts = demo()[0], demo()[1][:n]
    here, there = (Strategy(DFlash(draft, draft_device=device), shape) for device in (None, OTHER))
    for ahead in (True, False):
        monkeypatch.setattr(model, "can_overlap", ahead)
        want = steps_of(model, prompts, here, sampling)
        assert want[0] == plain(n, sampling)
        launches.clear()
        assert steps_of(model, prompts, there, sampling) == want
        assert launches[1] > 0


def test_drafts_are_launched_ahead(monkeypatch):
    model, prompts = demo()
    drafter = DFlash(draft_device=OTHER)
    drafter.prepare(model)
    attachment, followed = model.attachments[drafter], []
    launch = attachment.launch_ahead
    monkeypatch.setattr(attachment, "launch_ahead", lambda *asked: followed.append(launch(*asked)) or followed[-1])
    (session,) = written(model, prompts[:1], Strategy(drafter), Sampling(), N)
    assert session.n_accepted > 0
    assert len(followed) >= sum(bool(step.tokens) for step in session.steps) - 2
    assert all(followed)


@pytest.mark.parametrize("shape", [Chain(), Tree(22)], ids=repr)
def test_texts_that_come_and_go(shape):
    """Other forwards overwrite the target's features between the steps, and sequences are cancelled and saved."""
    sessions = come_and_go(*demo(), Strategy(DFlash(draft_device=OTHER), shape), SAMPLINGS[1])
    assert tokens(sessions) == plain_of_60(SAMPLINGS[1])


@pytest.mark.parametrize(
    "drafter",
    [
        FirstOf(PromptLookup(), DFlash(draft_device=OTHER)),
        Adaptive(Plain(), Strategy(DFlash(draft_device=OTHER), Chain()), Strategy(DFlash(), Tree(22))),
        Adaptive(Strategy(MTP(), Chain(3)), DFlash(draft_device=OTHER)),
    ],
    ids=["first of", "adaptive", "adaptive with MTP"],
)
def test_drafters_that_take_turns(drafter):
    model, prompts = demo()
    assert steps_of(model, prompts, Strategy(drafter), SAMPLINGS[1])[0] == plain(len(prompts), SAMPLINGS[1])


@cache
def answers(strategy, **settings):
    with dflash.load("demo", context=1024, sequences=3, **settings) as lm:
        made = lm.generate(TEXTS[:3], strategy=strategy, max_tokens=N, temperature=0.9, seed=5)
        return [list(one.tokens) for one in made], lm.info()["device"]["kind"]


@pytest.mark.parametrize(
    ("settings", "draft_device"),
    [
        ({"device": OTHER}, None),
        ({"device": OTHER}, "cuda:0"),
        ({"devices": ("cuda:0", OTHER), "split": "layer"}, OTHER),
        ({"devices": ("cuda:0", OTHER), "split": "tensor"}, OTHER),
    ],
    ids=["both on the second GPU", "GPUs exchanged", "layer split", "tensor split"],
)
def test_targets_on_other_gpus(settings, draft_device, launches, request):
    want = answers(DFlash(), device="cuda")
    if "split" in settings:  # kernels of a tensor split get arrays of other GPUs
        request.getfixturevalue("monkeypatch").undo()
    launches.clear()
    assert answers(DFlash(draft_device=draft_device), **settings) == want
    assert draft_device or 0 not in launches


@pytest.mark.parametrize("gpu", [2, 64])
def test_a_gpu_that_does_not_exist(gpu):
    n = n_devices()
    if gpu < n:
        pytest.skip(f"there are {n} GPUs")
    found = f"device 'cuda:{gpu}': this process sees {n} GPUs, cuda:0 to cuda:{n - 1}"
    with pytest.raises(Unsupported, match=found):
        load_draft("demo-draft", demo()[0], sequences=1, device=f"cuda:{gpu}")
    with pytest.raises(Unsupported, match=found):
        dflash.load("demo", device=f"cuda:{gpu}")


def test_a_small_model_on_another_gpu_is_refused():
    with pytest.raises(Unsupported, match="draft_device 'cuda:1': a small model runs on 'cuda', the GPU of its target"):
        DraftModel("demo", draft_device=OTHER).load(demo()[0])
