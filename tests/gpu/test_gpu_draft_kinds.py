"""Random drafts of all kinds on a GPU, against their mathematics in float64, and the texts that are written with them."""

from dataclasses import replace

import numpy as np
import pytest
from draft_oracle import Oracle, log_softmax
from drafts import SECOND, SMALL, SPARK, random_weights, write_folder, write_gguf
from golden import chain
from written import demo_on_gpu, tokens, written

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.errors import Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.draft import DraftRequest, load_draft

pytest.importorskip("cupy")

SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]
SIZES = {"ffn": 256, "heads": 4, "kv_heads": 2, "head_size": 64, "block": 8, "target_layer_ids": (1, 3, 5)}
SIZES |= {"n_vocab": 16384, "width": 512, "mask": 16377}
ANCHOR = 77

demo, plain = demo_on_gpu(("def fibonacci(n):\n    if n < 2:\n", "Once upon a time there was"), context=1024, sequences=3)


def read(draft, n, oracle=None):
    """A state that has read `n` positions, as the oracle has."""
    model, prompts = demo()
    ids = np.resize(np.array(prompts[0], np.int32), n)
    state, target = draft.state(), model.state()
    span = Span(target, ids, chain(n), prefill=True, logits=False)
    captured = model.forward([span], capture=draft.config.target_layer_ids).captured
    draft.read(state, captured, slice(0, n))
    if oracle:
        oracle.read(np.concatenate([captured[tap].get() for tap in draft.config.target_layer_ids], axis=1))
    target.close()
    return state


def proposed(path, config, weights, width=1, **settings):
    """What a draft proposes greedily after 150 positions, beside another text, and an oracle that has read them."""
    model, _ = demo()
    table = model.weights.host.matrix("token_embd.weight").unpacked()
    draft, oracle = load_draft(path, model, sequences=2, **settings), Oracle(config, weights, table, table)
    assert (draft.config.causal, draft.config.windows) == (config.causal, config.windows)
    state, other = read(draft, 150, oracle), read(draft, 70)
    asks = [
        DraftRequest(other, 5, config.max_draft, SampleParams(1.0, seed=3), 1),
        DraftRequest(state, ANCHOR, config.max_draft, SampleParams(), width),
    ]
    _, got = draft.propose(asks)
    state.close(), other.close(), draft.close()
    return got, oracle


@pytest.mark.parametrize("cap", [0.0, 3.0])
def test_windows_causality_scale_cap_and_factor(tmp_path, cap):
    """Two layers see the last 20 positions and what is before them, one all of the context and of the block."""
    config = replace(SMALL, **SIZES, logit_scale=0.5, logit_cap=cap, embed_scale=1.5)
    inner = {"mask_token_id": config.mask, "target_layer_ids": list(config.target_layer_ids), "output_multiplier": 0.5}
    inner |= {"input_embedding_scale": 1.5} | ({"final_logit_softcapping": cap} if cap else {})
    weights = random_weights(config)
    got, oracle = proposed(write_folder(tmp_path / "draft", config, weights, dflash_config=inner), config, weights)
    scores = log_softmax(oracle.block(ANCHOR, config.block)[1][config.lead :])
    rows, found = np.arange(config.max_draft), got.ids[:, 0]
    np.testing.assert_allclose(got.scores[:, 0], scores[rows, found], atol=0.02)
    np.testing.assert_allclose(scores[rows, found], scores.max(axis=1), atol=0.02)
    assert (found == scores.argmax(axis=1)).sum() > 4


def spark(tmp_path, **changes):
    config = replace(SPARK, **SIZES, markov_rank=32, **changes)
    weights = random_weights(config)
    weights["conf_proj.bias"] += 2
    return write_gguf(tmp_path / "spark.gguf", config, weights), config, weights


@pytest.mark.parametrize("from_anchor", [True, False])
def test_drafts_reach_as_far_as_their_confidence(tmp_path, from_anchor):
    path, config, weights = spark(tmp_path, from_anchor=from_anchor)
    got, oracle = proposed(path, config, weights)
    walk, _, held = oracle.walk(ANCHOR, config.block)
    same = [a == b for a, b in zip(got.ids[:, 0].tolist(), walk, strict=True)]
    most = (*same, False).index(False)
    assert most > 2
    products = [1.0, *np.cumprod(held)[:most]]
    for n in range(most):
        if products[n + 1] < 0.98 * products[n]:
            least = float(np.sqrt(products[n] * products[n + 1]))
            cut, _ = proposed(path, config, weights, min_confidence=least)
            assert cut.ids[:, 0].tolist() == walk[:n]


@pytest.mark.parametrize("from_anchor", [True, False])
def test_pairs_of_a_walk(tmp_path, from_anchor):
    """How well each candidate follows each of the position before, where the walks are the same."""
    path, config, weights = spark(tmp_path, from_anchor=from_anchor)
    weights["markov_w1.weight"] *= 4
    path = write_gguf(tmp_path / "other.gguf", config, weights)
    got, oracle = proposed(path, config, weights, width=16)
    assert got.edges.shape == (config.max_draft, 16, 16)
    logits = oracle.block(ANCHOR, config.block)[1][config.lead :]
    before, common, w1, w2 = [ANCHOR] * 16, 0, weights["markov_w1.weight"], weights["markov_w2.weight"]
    for t, walked in enumerate(oracle.walk(ANCHOR, config.block)[0]):
        ids, along = got.ids[t], logits[t] + w2 @ w1[before[0]]
        mass = np.exp(log_softmax(along)[ids]).sum()
        for i, token in enumerate(before):
            want = log_softmax((logits[t] + w2 @ w1[token])[ids]) + np.log(mass)
            np.testing.assert_allclose(got.edges[t, i], want, atol=0.1)
        common += len({*ids.tolist()} & {*np.argsort(-along)[:16].tolist()})
        if ids[0] != walked:
            break
        before = ids.tolist()
    assert t > 2
    assert common > 14 * t


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(), Tree(12)], ids=repr)
def test_outputs_of_drafts_cut_by_confidence_are_plain(tmp_path, shape, sampling, monkeypatch):
    """Outputs are plain though nearly all draft tokens are wrong; but near ends, drafts are what the host would shape."""
    model, prompts = demo()
    strategy, steps = Strategy(DFlash(str(spark(tmp_path)[0]), min_confidence=0.4), shape), []
    for on_device in (True, False):
        if not on_device:
            monkeypatch.setattr(model.attachments[strategy.drafter], "draft_on_device", lambda wishes, anchors: None)
        sessions = written(model, prompts, strategy, sampling)
        assert tokens(sessions) == plain(sampling)
        steps.append([[step.draft.tokens.tolist() for step in session.steps[:25]] for session in sessions])
    sizes = set()
    for device, host in zip(*steps, strict=True):
        for ours, theirs in zip(device, host, strict=True):
            assert ours[: len(theirs)] == theirs
            sizes.add(len(theirs))
    assert len(sizes) > 1
    model.attachments.pop(strategy.drafter).close()


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (replace(SMALL, **SIZES | {"head_size": 272}), "heads of 272, a GPU runs up to 256"),
        (replace(SECOND, **SIZES, selector_top=40), "candidates of a selector: 40, a GPU runs up to 32"),
    ],
    ids=["heads", "selector"],
)
def test_what_has_no_room_is_refused_in_one_sentence(tmp_path, config, words):
    """The CPU runs it beside the same model."""
    model, _ = demo()
    path = write_gguf(tmp_path / "draft.gguf", config, random_weights(config))
    with pytest.raises(Unsupported, match=words):
        load_draft(path, model, sequences=1)
    draft = load_draft(path, model, sequences=1, device="cpu")
    state = draft.state()
    assert len(draft.propose([DraftRequest(state, ANCHOR, 2, SampleParams(), 2)])[0]) == 2
    state.close(), draft.close()


def test_a_selector_with_many_candidates_and_long_codes(tmp_path):
    config = replace(SECOND, **SIZES, selector_top=32, selector_rank=272)
    weights = random_weights(config)
    got, oracle = proposed(write_gguf(tmp_path / "draft.gguf", config, weights), config, weights)
    found, scores = oracle.select(ANCHOR, config.block)
    assert got.edges.shape == (7, 32, 32)
    first = {int(token): got.edges[0, 0, j] for j, token in enumerate(got.ids[0])}
    common = [token for token in first if token in scores[0]]
    assert len(common) > 27
    assert max(abs(first[token] - scores[0][token]) for token in common) < 0.1
    assert int(got.ids[0, got.edges[0, 0].argmax()]) == found[0]
