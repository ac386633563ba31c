"""Drafts and MTP heads on a GPU that draft from some tokens: as on the CPU, and texts stay those of plain decoding."""

import numpy as np
import pytest
from golden import chain
from written import demo_on_gpu, tokens, written

from dflash.decode.drafters.dflash import DFlash
from dflash.decode.drafters.mtp import MTP
from dflash.decode.drafting.drafter import Strategy
from dflash.decode.drafting.shapes import Chain, Tree
from dflash.decode.sampling.params import Sampling
from dflash.kernels.formats import Matrix
from dflash.kernels.sample import SampleParams
from dflash.model.batch import Span
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.draft.vocabulary import first
from dflash.model.loading.mtp import load_mtp
from dflash.model.recurrent_head import HeadRequest

TEXTS = ["def fibonacci(n):\n    if n < 2:\n        return n\n", "Once upon a time there was a king who"]
SAMPLINGS = [Sampling(), Sampling(temperature=1.0, seed=3)]
N = 4096

demo, plain = demo_on_gpu(TEXTS, context=1024, sequences=3)


def proposed(law, n, device=None):
    model, prompts = demo()
    draft = load_draft("demo-draft", model, device=device, sequences=1, draft_vocab=n)
    state, target = draft.state(), model.state()
    span = Span(target, np.array(prompts[0], np.int32), chain(len(prompts[0])), prefill=True, logits=False)
    draft.read(state, model.forward([span], capture=draft.config.target_layer_ids).captured, slice(0, len(prompts[0])))
    (found,) = draft.propose([DraftRequest(state, prompts[0][-1], 15, law, 64)])
    state.close(), target.close(), draft.close()
    return found


def test_rows_of_a_matrix(arrays):
    """Some rows of packed weights make what all of them make there, but for how sums of K are cut."""
    import cupy

    from dflash.kernels.formats.cuda import PackedWeight
    from dflash.kernels.linear.cuda import DecodeLinear

    weights = arrays.standard_normal((203, 512), dtype=np.float32).astype(np.float16)
    tiles = PackedWeight(Matrix(weights.view(np.uint8), "F16"))
    x = cupy.asarray(arrays.standard_normal((5, 512), dtype=np.float32).astype(np.float16))
    out = cupy.full((5, 120), np.nan, np.float32)
    parts = [slice(0, 33), slice(112, 199)]
    DecodeLinear(x, [tiles.rows(part) for part in parts], [out[:, :33], out[:, 33:]])(5)
    want = x.get().astype(np.float64) @ weights[np.r_[0:33, 112:199]].T.astype(np.float64)
    np.testing.assert_allclose(out.get(), want, atol=1e-2)


@pytest.mark.parametrize("law", [SampleParams(), SampleParams(1.0, seed=3)], ids=["greedy", "drawn"])
def test_candidates_are_those_of_the_cpu(law):
    got, want = proposed(law, N), proposed(law, N, "cpu")
    known = first(demo()[0], N).targets
    assert np.isin(got.ids[got.ids >= 0], known).all()
    clear = want.scores[:, 0] - want.scores[:, 1] > 0.1
    assert clear.sum() > 5
    np.testing.assert_array_equal(got.ids[clear, 0], want.ids[clear, 0])
    for mine, its, other, theirs in zip(got.ids, got.scores, want.ids, want.scores, strict=True):
        ours = dict(zip(mine.tolist(), its.tolist(), strict=True))
        both = [(ours[token], score) for token, score in zip(other.tolist(), theirs.tolist(), strict=True) if token in ours]
        assert len(both) > 50
        assert max(abs(a - b) for a, b in both) < 0.1


def test_all_tokens_are_as_good_as_no_limit():
    want = proposed(SampleParams(1.0, seed=3), None)
    got = proposed(SampleParams(1.0, seed=3), demo()[0].n_vocab)
    np.testing.assert_array_equal(got.ids, want.ids)
    np.testing.assert_array_equal(got.scores, want.scores)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "T 1"])
@pytest.mark.parametrize("shape", [Chain(), Tree(22)], ids=repr)
@pytest.mark.parametrize("drafter", [DFlash(draft_vocab=N), MTP(draft_vocab=N)], ids=["dflash", "mtp"])
def test_texts_are_those_of_plain_decoding(drafter, shape, sampling, monkeypatch):
    """Drafts are of the tokens that are known, the same ones launched ahead, step by step, and shaped on the host."""
    model, prompts = demo()
    strategy, steps = Strategy(drafter, shape), []
    strategy.drafter.prepare(model)
    known = set(first(model, N).targets.tolist())
    for ahead, on_device in ((True, True), (False, True), (False, False)):
        monkeypatch.setattr(model, "can_overlap", ahead)
        if not on_device:
            monkeypatch.setattr(model.attachments[strategy.drafter], "draft_on_device", lambda *_: None)
        sessions = written(model, prompts, strategy, sampling)
        assert tokens(sessions) == plain(sampling)
        assert sum(session.n_accepted for session in sessions) > 0
        assert all(set(step.draft.tokens.tolist()) <= known for session in sessions for step in session.steps)
        steps.append([[(step.tokens, step.accepted) for step in session.steps] for session in sessions])
    assert steps[0] == steps[1] == steps[2]


@pytest.mark.parametrize("law", [SampleParams(), SampleParams(1.0, seed=3)], ids=["greedy", "drawn"])
def test_candidates_of_a_head_are_the_best_of_all_that_are_known(law):
    model, prompts = demo()
    tokens, known = np.array(prompts[0], np.int32), first(model, N).targets
    state = model.state()
    hidden = model.forward([Span(state, tokens[:-1], chain(len(tokens) - 1), prefill=True, logits=False)]).hidden.copy()
    state.close()
    every, some = (drafted(model, n, tokens[1:], hidden, law) for n in (model.n_vocab, N))
    assert len(np.unique(some.ids)) == 64
    assert np.isin(some.ids, known).all()
    assert not np.isin(every.ids, known).all()
    both, ours, theirs = np.intersect1d(every.ids, some.ids, return_indices=True)
    assert len(both) > 20
    apart = every.scores[0, ours] - some.scores[0, theirs]
    assert np.ptp(apart) < 1e-2  # sums of K may be cut otherwise


def drafted(model, n, tokens, hidden, law):
    head = load_mtp(model, draft_vocab=n)
    assert head.draft_vocabs == ()
    state = head.state()
    (found,) = head.propose([HeadRequest(state, tokens, hidden, 1, law, len(tokens) + 1, 64)])
    state.close()
    return found


@pytest.fixture
def arrays():
    return np.random.default_rng(5)
