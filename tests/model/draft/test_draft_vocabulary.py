"""Draft models with a smaller draft vocabulary."""

from types import SimpleNamespace

import numpy as np
import pytest
from drafts import KINDS, SMALL, VOCAB, features, random_weights, target, write_gguf

from dflash.errors import RequestError, Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.draft import DraftRequest, load_draft
from dflash.model.draft.vocabulary import LARGE, common

LAWS = [SampleParams(), SampleParams(0.8, top_k=30, seed=4)]
SPECIAL = 190
"""First special token of the target; its tile of 16 rows begins at 176."""


def proposed(folder, config, params, n, width=8, **settings):
    """Return the proposal of a draft with `n` tokens, whose target has special tokens."""
    path = folder / f"{config.kind}.gguf"
    if not path.exists():
        write_gguf(path, config, random_weights(config))
    of = target(config)
    of.weights.metadata["tokenizer.ggml.token_type"] = [1] * SPECIAL + [3] * (VOCAB - SPECIAL)
    draft = load_draft(path, of, sequences=1, draft_vocab=n, **settings)
    state = draft.state()
    draft.read(state, features(config, 30)[0], slice(0, 30))
    (found,) = draft.propose([DraftRequest(state, 11, config.max_draft, params, width)])
    draft.close()
    return found


@pytest.mark.parametrize("params", LAWS, ids=["greedy", "drawn"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_tokens_equal_no_limit(tmp_path, kind, params):
    want = proposed(tmp_path, KINDS[kind], params, None)
    for n in (VOCAB, SPECIAL, 176):
        got = proposed(tmp_path, KINDS[kind], params, n)
        for name, mine, other in zip(want._fields, got, want, strict=True):
            np.testing.assert_array_equal(mine, other, err_msg=name)


@pytest.mark.parametrize("params", LAWS, ids=["greedy", "drawn"])
@pytest.mark.parametrize("n", [1, 33, 64, 150])
def test_drafts_are_the_best_of_the_first_and_the_special_tokens(tmp_path, n, params):
    """Candidates have the order and score differences of the full vocabulary, with the noise of the same tokens."""
    every = proposed(tmp_path, SMALL, params, None, width=64)
    got = proposed(tmp_path, SMALL, params, n, width=64)
    known = np.r_[0:n, 176:VOCAB]
    for t in range(SMALL.max_draft):
        mine, there = got.ids[t, got.ids[t] >= 0], dict(zip(every.ids[t].tolist(), every.scores[t].tolist(), strict=True))
        assert np.isin(mine, known).all()
        assert len(mine) == (min(64, len(known)) if params.scale is None else min(30, len(known)))
        both = [i for i, token in enumerate(mine.tolist()) if token in there and there[token] > -np.inf]
        assert len(both) > 1
        apart = [got.scores[t, i] - there[mine[i]] for i in both]
        assert max(apart) - min(apart) < 1e-4


def shared(one, other, t):
    """Return the indices, in both proposals, of the candidates that both have at a position."""
    ours, theirs = one.ids[t].tolist(), other.ids[t].tolist()
    return [(ours.index(token), theirs.index(token)) for token in theirs if token in ours]


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_what_follows_what_is_known_of_each_token(tmp_path, kind):
    """Codes belong to tokens, not to rows: pairs in both vocabularies have equal scores up to a constant."""
    every, got = (proposed(tmp_path, KINDS[kind], SampleParams(), n) for n in (None, 100))
    compared = 0
    for t in range(1, len(got)):
        above, here = shared(got, every, t - 1), shared(got, every, t)
        if kind == "dspark" and got.ids[t - 1, 0] != every.ids[t - 1, 0]:
            break  # the walk has gone another way
        for i, other in above:
            apart = [got.edges[t, i, j] - every.edges[t, other, k] for j, k in here]
            if len(apart) > 1:
                compared += 1
                assert max(apart) - min(apart) < 1e-4
    assert np.isin(got.ids[got.ids >= 0], np.r_[0:100, 176:VOCAB]).all()
    assert compared > 0


def test_a_draft_vocabulary_that_can_not_be_is_refused(tmp_path):
    for n in (0, VOCAB + 1):
        with pytest.raises(RequestError, match=f"draft_vocab is {n}, must be a whole number from 1 to {VOCAB}"):
            proposed(tmp_path, SMALL, SampleParams(), n)
    own = random_weights(SMALL, n_head=50, own=("output.weight", "d2t"))
    write_gguf(tmp_path / "own.gguf", SMALL, own)
    with pytest.raises(Unsupported, match="draft_vocab is 9, but this draft has a vocabulary of its own, of 50 tokens"):
        load_draft(tmp_path / "own.gguf", target(), sequences=1, draft_vocab=9)


@pytest.mark.parametrize("n_vocab", [LARGE, 151_936, 248_320])
def test_common_tokens_are_the_first_and_the_special_ones(n_vocab):
    types = [1] * (n_vocab - 300) + [3] * 300
    weights = SimpleNamespace(metadata={"tokenizer.ggml.token_type": types})
    found = common(SimpleNamespace(device="cpu", weights=weights, config=SimpleNamespace(n_vocab=n_vocab)))
    assert len(found) == 2
    for known, share in zip(found, (0.4, 0.6), strict=True):
        assert all(known.has(token) for token in (0, int((share - 0.01) * n_vocab), n_vocab - 300, n_vocab - 1))
        assert not any(known.has(token) for token in (int((share + 0.01) * n_vocab), n_vocab - 400))
        assert all(part.start % 16 == 0 for part in known.parts)
        assert share * n_vocab - 16 < len(known) < share * n_vocab + 320


def test_a_small_vocabulary_has_no_common_subset():
    assert common(SimpleNamespace(config=SimpleNamespace(n_vocab=LARGE - 1))) == ()
