"""Drafts of the common tokens alone, on a GPU, while a text keeps to them: texts stay those of plain decoding."""

from dataclasses import replace

import numpy as np
import pytest
from drafts import KINDS, random_weights, write_gguf
from golden import chain
from written import tokens, written

from dflash.decode.drafters import vocab_tracker
from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Plain, Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.describe import overview
from dflash.model.draft import DraftRequest, load_draft, vocabulary
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.loading.mtp import load_mtp
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model

TEXTS = [
    2 * "import multiprocessing\nimport subprocess\nfrom concurrent.futures import ThreadPoolExecutor\n",
    "Once upon a time there was a king who",
]
"""Of rare tokens, and of common ones."""
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]


@pytest.fixture(scope="module")
def demo():
    """The demo, whose vocabulary passes for one of many languages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vocabulary, "LARGE", 1000)
        loaded = load_model("demo", LoadSettings(device="cuda", context=1024, sequences=3))
        for drafter in (DFlash(), MTP()):
            drafter.prepare(loaded.model)
        yield loaded.model, [loaded.tokenizer.encode(text) for text in TEXTS]


@pytest.fixture(scope="module", params=SAMPLINGS, ids=["greedy", "T 1"])
def plain(demo, request):
    return request.param, tokens(written(*demo, Plain(), request.param))


@pytest.mark.parametrize("law", [SampleParams(), SampleParams(1.0, seed=3)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("which", [0, 1])
def test_candidates_are_the_best_of_the_common_tokens(demo, law, which):
    model, prompts = demo
    draft = load_draft("demo-draft", model, sequences=1)
    state, target = draft.state(), model.state()
    span = Span(target, np.array(prompts[0], np.int32), chain(len(prompts[0])), prefill=True, logits=False)
    draft.read(state, model.forward([span], capture=draft.config.target_layer_ids).captured, slice(0, len(prompts[0])))
    known = draft.draft_vocabs[which]
    every, some = (draft.propose([DraftRequest(state, prompts[0][-1], 15, law, 64, common)])[0] for common in (None, which))
    assert not all(known.has(token) for token in every.ids.flat)
    assert all(known.has(token) for token in some.ids.flat)
    for mine, its, all_ids, all_scores in zip(some.ids, some.scores, every.ids, every.scores, strict=True):
        ours = dict(zip(mine.tolist(), its.tolist(), strict=True))
        both = [
            (ours[token], score) for token, score in zip(all_ids.tolist(), all_scores.tolist(), strict=True) if token in ours
        ]
        assert len(both) > 20
        apart = [mine - other for mine, other in both]
        assert max(apart) - min(apart) < 1e-2  # sums of K may be cut otherwise
    state.close(), target.close(), draft.close()


def test_info_says_so(demo):
    with GGUFFile.open(resolve("demo")) as file:
        about = overview(file, device="cuda")["model"]["draft_vocab_steps"]
    heads = [demo[0].attachments[drafter] for drafter in (DFlash(), MTP())]
    assert [[known.parts[0].stop for known in head.draft_vocabs] for head in heads] == [about["common"]] * 2


def test_a_limit_is_kept_to_whatever_a_text_is(demo):
    model, _ = demo
    assert [len(load_mtp(model, draft_vocab=n).draft_vocabs) for n in (None, 4096, model.n_vocab)] == [2, 0, 0]


@pytest.mark.parametrize("rule", [(64, 64), (24, 1), (64, -1)], ids=["always", "as the text is", "never"])
@pytest.mark.parametrize("drafter", [DFlash(), MTP()], ids=["dflash", "mtp"])
@pytest.mark.parametrize("shape", [Chain(), Tree(14)], ids=repr)
def test_texts_are_those_of_plain_decoding(demo, plain, drafter, shape, rule, monkeypatch):
    """Drafts are the same whether steps are launched ahead or not."""
    (model, prompts), (sampling, text), steps = demo, plain, []
    for name, value in zip(("RECENT", "FEW"), rule, strict=True):
        monkeypatch.setattr(vocab_tracker, name, value)
    for ahead in (True, False):
        monkeypatch.setattr(model, "can_overlap", ahead)
        sessions = written(model, prompts, Strategy(drafter, shape), sampling)
        assert tokens(sessions) == text
        assert sum(session.n_accepted for session in sessions) > 0
        steps.append([[(step.tokens, step.accepted, step.draft.tokens.tolist()) for step in s.steps] for s in sessions])
    assert steps[0] == steps[1]
    draft_tokens = [token for session in steps[0] for step in session for token in step[2]]
    kept_to = all(model.attachments[drafter].draft_vocabs[0].has(token) for token in draft_tokens)
    assert kept_to == (rule[1] == rule[0])
    draft_vocab_steps = {n for session in sessions for n in session.draft_vocab_steps}
    sizes = [known.parts[0].stop for known in model.attachments[drafter].draft_vocabs]
    assert draft_vocab_steps <= {*sizes, model.n_vocab}
    if kept_to or rule[1] < 0:
        assert draft_vocab_steps == {sizes[0] if kept_to else model.n_vocab}


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_random_drafts_keep_to_them(demo, plain, kind, tmp_path, monkeypatch):
    """Pairs of a selector, and the walk of a Markov head, whose corrections are added to what is left out, too."""
    (model, prompts), (sampling, text) = demo, plain
    sizes = {
        "ffn": 256,
        "head_size": 64,
        "block": 8,
        "target_layer_ids": (1, 3, 5),
        "n_vocab": 16384,
        "width": 512,
        "mask": 16377,
    }
    config = replace(KINDS[kind], **sizes, markov_rank=32 if kind == "dspark" else 0)
    drafter = DFlash(write_gguf(tmp_path / "draft.gguf", config, random_weights(config)))
    monkeypatch.setattr(vocab_tracker, "FEW", vocab_tracker.RECENT)
    for shape in (Chain(), Tree(14)):
        sessions = written(model, prompts, Strategy(drafter, shape), sampling)
        assert tokens(sessions) == text
        draft_tokens = [token for session in sessions for step in session.steps for token in step.draft.tokens.tolist()]
        assert len(draft_tokens) > 100
        assert all(model.attachments[drafter].draft_vocabs[0].has(token) for token in draft_tokens)
