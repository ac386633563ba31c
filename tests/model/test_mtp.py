"""The MTP head against recorded results, alone and in batches, and the content of its cache."""

import os
import re
from pathlib import Path

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from draft_oracle import log_softmax
from gguf_bytes import write
from golden import load, path_of, recorded
from mtp_text import NAME, reading, text

from dflash.errors import PoolExhausted, RequestError, Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.config import Config
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.mtp import load_mtp
from dflash.model.model import Model
from dflash.model.recurrent_head import HeadRequest, Unread

DEMO = Path(os.environ.get("DFLASH_DEMO") or "/nowhere")
GREEDY = SampleParams()
SPECIAL = 480
"""First token of the tile of 16 that contains the first special token."""


@pytest.fixture(params=["f16", "f32"])
def head(request):
    head = load_mtp(load(NAME, kv=request.param))
    yield head
    assert (head.pools.free_pages, head.pools.free_slots) == (head.pools.pages, head.pools.slots)


def ask(state, tokens, hidden, n=1, *, law=GREEDY, width=4, position=0):
    return HeadRequest(state, np.array(tokens, np.int32), hidden, n, law, position, width)


def test_every_pair_as_recorded():
    """Return the likeliest next tokens after each pair of the text, and their log-probabilities."""
    head = load_mtp(load(NAME, kv="f32"))
    want, (tokens, hidden) = recorded(NAME)["mtp.logits"], text()
    for i in range(0, 47, 5):
        state = reading(head, i)
        (found,) = head.propose([ask(state, tokens[i + 1 : i + 2], hidden[i : i + 1], width=64)])
        expected = log_softmax(want[i])
        assert_close(f"pair {i}", found.scores[0], expected[found.ids[0]], 1e-5)
        assert np.isin(np.argsort(-expected)[:32], found.ids[0]).all()
        state.close()


def test_a_chain_as_recorded():
    head = load_mtp(load(NAME, kv="f32"))
    want, (_, hidden) = recorded(NAME), text()
    state = reading(head, 47)
    (found,) = head.propose([ask(state, want["mtp.chain_inputs"][:1], hidden[47:], 3)])
    assert found.ids[:, 0].tolist() == want["mtp.chain_next"].tolist()
    for scores, logits in zip(found.scores, want["mtp.chain_logits"], strict=True):
        assert_close("scores", scores, np.sort(log_softmax(logits))[::-1][:4], 1e-5)
    state.close()


@pytest.mark.skipif(not (DEMO / "demo-bf16.gguf").exists(), reason="DFLASH_DEMO names no folder with demo-bf16.gguf")
def test_the_demo_as_recorded():
    file = GGUFFile.open(DEMO / "demo-bf16.gguf")
    model = Model(file, Config.from_gguf(file.metadata, file.tensors), pages=4, slots=2, kv="f32", threads=1)
    want = np.load(DEMO / "golden" / "mtp_ref.npz")
    head, ids, hidden = load_mtp(model), want["ids"], want["target_hidden"]
    state = head.state()
    for i in range(71):
        (found,) = head.propose([ask(state, ids[i + 1 : i + 2], hidden[i : i + 1], width=64)])
        expected = log_softmax(want["mtp_logits"][i])
        # recorded logits are float16, whose spacing is 1 / 64 between 16 and 32
        assert np.abs(found.scores[0] - expected[found.ids[0]]).max() < 1.6e-2
    state.close()
    file.close()


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_chunks_are_one_reading(head, chunk):
    tokens, hidden = text()
    states = [reading(head, 40), reading(head, 40, chunk)]
    for state in states:
        assert state.length == 40
    one, other = (head.propose([ask(s, tokens[41:44], hidden[40:43], 4)])[0] for s in states)
    assert_same_bits("scores", one.scores, other.scores)
    for state in states:
        state.close()


@pytest.mark.parametrize("law", [GREEDY, SampleParams(scale=1.0, seed=5)], ids=["greedy", "T 1"])
def test_a_batch_changes_nothing(head, law):
    tokens, hidden = text()
    sizes, wanted = (3, 20, 40, 11), (4, 1, 2, 7)
    asks, alone = [], []
    for i, n in zip(sizes, wanted, strict=True):
        new = slice(i, i + n)
        asks.append((tokens[i + 1 : i + 1 + n], hidden[new], n))
        state = reading(head, i)
        alone.append(head.propose([ask(state, *asks[-1], law=law, position=i)])[0])
        state.close()
    states = [reading(head, i) for i in sizes]
    together = head.propose([ask(state, *a, law=law, position=i) for state, a, i in zip(states, asks, sizes, strict=True)])
    for n, one, other in zip(wanted, alone, together, strict=True):
        assert one.ids.shape == other.ids.shape == (n, 4)
        assert one.ids.tolist() == other.ids.tolist()
        assert_same_bits("scores", one.scores, other.scores)
    for state in states:
        state.close()


def test_reading_computes_keys_and_values_alone(head, monkeypatch):
    """Few unread tokens are read in the pass that drafts, with the whole block; the drafts after them are the same."""
    tokens, hidden = text()
    states = [reading(head, n) for n in (33, 40)]
    unread = [(tokens[n + 1 : 42], hidden[n:41]) for n in (33, 40)]
    (whole,), (short,) = (head.propose([ask(state, *each)]) for state, each in zip(states, unread, strict=True))
    np.testing.assert_array_equal(whole.scores, short.scores)
    monkeypatch.setattr(head, "_draft", None)
    head.read_all([Unread(states[0], tokens[42:44], hidden[41:43])])
    for state in states:
        state.close()


def test_draft_positions_are_removed(head):
    """After a proposal, the cache holds only the text, so that later results do not depend on the proposal."""
    tokens, hidden = text()
    drafted, plain = reading(head, 30), reading(head, 30)
    head.propose([ask(drafted, tokens[31:33], hidden[30:32], 6)])
    assert drafted.length == 32
    head.read_all([Unread(plain, tokens[31:33], hidden[30:32])])
    one, other = (head.propose([ask(s, tokens[33:35], hidden[32:34], 3)])[0] for s in (drafted, plain))
    assert_same_bits("scores", one.scores, other.scores)
    drafted.close(), plain.close()


def test_a_snapshot_is_a_place_to_come_back_to(head):
    tokens, hidden = text()
    state, other = reading(head, 20), head.state()
    snapshot = state.snapshot()
    (want,) = head.propose([ask(state, tokens[21:24], hidden[20:23], 4)])
    other.restore(snapshot)
    (got,) = head.propose([ask(other, tokens[21:24], hidden[20:23], 4)])
    assert_same_bits("scores", got.scores, want.scores)
    for each in (state, other, snapshot):
        each.close()


def test_memory_is_bounded(head):
    states = [head.state() for _ in range(head.pools.slots)]
    with pytest.raises(PoolExhausted):
        head.state()
    states[0].reserve(head.pools.pages * 256)
    with pytest.raises(PoolExhausted):
        head.read_all([Unread(states[1], *(array[:1] for array in text()))])
    for state in states:
        state.close()


@pytest.mark.parametrize("law", [GREEDY, SampleParams(0.8, seed=4)], ids=["greedy", "drawn"])
@pytest.mark.parametrize("n", [90, 300])
def test_drafts_of_the_first_and_the_special_tokens(n, law):
    """Candidates are the best tokens of the draft vocabulary, with the noise of the same tokens."""
    model, (tokens, hidden) = load(NAME, kv="f32"), text()
    known = np.r_[0:n, SPECIAL : model.n_vocab]
    every, some = (drafted(load_mtp(model, draft_vocab=m), tokens, hidden, law) for m in (None, n))
    assert np.isin(some.ids[some.ids >= 0], known).all()
    assert not np.isin(every.ids[every.ids >= 0], known).all()
    all_scores, scores = (dict(zip(found.ids[0].tolist(), found.scores[0].tolist(), strict=True)) for found in (every, some))
    both = [token for token in scores if token in all_scores and token >= 0]
    assert len(both) > 4
    assert np.ptp([all_scores[token] - scores[token] for token in both]) < 1e-4


def drafted(head, tokens, hidden, law):
    state = reading(head, 8)
    (found,) = head.propose([ask(state, tokens[9:10], hidden[8:9], 3, law=law, width=64, position=10)])
    state.close()
    return found


@pytest.mark.parametrize("n", [0, 10**6])
def test_more_tokens_than_there_are(n):
    model = load(NAME)
    with pytest.raises(RequestError, match=f"draft_vocab is {n}, must be a whole number from 1 to {model.n_vocab}"):
        load_mtp(model, draft_vocab=n)


def without_trunk(path, folder):
    """Return the file of a model with its trunk's tensors renamed to unknown names."""
    return write(folder / "mtp-only.gguf", re.sub(rb"blk\.([0-3])\.", rb"BLK.\1.", path.read_bytes()))


def test_a_head_in_a_file_of_its_own(tmp_path):
    """The same file without its trunk, beside the complete file."""
    model, (tokens, hidden) = load(NAME, kv="f32"), text()
    found = []
    for name in (None, without_trunk(path_of(NAME), tmp_path)):
        head = load_mtp(model, name)
        state = reading(head, 30)
        found += head.propose([ask(state, tokens[31:32], hidden[30:31], 4)])
        state.close()
        head.close()
    assert found[0].ids.tolist() == found[1].ids.tolist()
    assert_same_bits("scores", *(each.scores for each in found))


def test_no_head_to_be_had():
    with pytest.raises(Unsupported, match="holds no MTP block; name a file"):
        load_mtp(load("qwen35-r2-untied-F32"))
    with pytest.raises(Unsupported, match=r"qwen35-r2-untied-F32\.gguf: holds no MTP block"):
        load_mtp(load(NAME), path_of("qwen35-r2-untied-F32"))
    with pytest.raises(Unsupported, match=r"demo-draft: a draft model \(dflash\), not an MTP head"):
        load_mtp(load(NAME), "demo-draft")
    with pytest.raises(Unsupported, match="another model: its width is 96, the model's"):
        load_mtp(load("qwen35-r3-tied-k-IQ4_XS"), path_of(NAME))
