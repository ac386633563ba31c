"""EAGLE-3 heads against the reference module of speculators, alone and in batches, and heads of other targets."""

import json

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from draft_oracle import log_softmax
from drafts import safetensors
from eagle_heads import CASES, LAYER, TARGET, features, settings, stored, tensors, write_specforge, write_speculators
from golden import FOLDER, load

from dflash.errors import FormatError, NotFound, RequestError, Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.eagle.files import config_of
from dflash.model.eagle.load import load_eagle
from dflash.model.recurrent_head import HeadRequest, Unread

GOLDEN = np.load(FOLDER / "eagle3.npz")
GREEDY = SampleParams()
N = 20
"""Tokens of a recorded text with features."""


@pytest.fixture
def head(tmp_path):
    head = load_eagle(load(TARGET), write_speculators(tmp_path / "head", **CASES["qwen3, 3.1"]))
    yield head
    assert (head.pools.free_pages, head.pools.free_slots) == (head.pools.pages, head.pools.slots)


def text(seed=0):
    return GOLDEN["llama/tokens"], features(N + 4, seed)[:N]


def reading(head, n, chunk=512, seed=0):
    """A state that has read the first `n` positions."""
    tokens, given = text(seed)
    state = head.state()
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        head.read_all([Unread(state, tokens[start + 1 : stop + 1], given[start:stop])])
    return state


def ask(state, tokens, given, n=1, *, params=GREEDY, width=64, position=0):
    return HeadRequest(state, np.array(tokens, np.int32), given, n, params, position, width)


@pytest.mark.parametrize("write", [write_speculators, write_specforge])
@pytest.mark.parametrize(("seed", "name"), list(enumerate(CASES)))
def test_positions_and_a_chain_as_recorded(seed, name, write, tmp_path):
    """Scores of the likeliest tokens are those of the reference module; the text is read by both passes of the head."""
    head = load_eagle(load(TARGET), write(tmp_path / "head", seed, **CASES[name]))
    want = {key.rpartition("/")[2]: GOLDEN[key] for key in GOLDEN.files if key.startswith(f"{name}/")}
    tokens, given, ids = want["tokens"], features(N + 4, seed), head._targets
    for i, logits in zip(range(0, N, 6), want["logits"], strict=True):
        state = head.state()
        (found,) = head.propose([ask(state, tokens[1 : i + 2], given[: i + 1])])
        check(found, 0, logits, ids)
        state.close()
    state = head.state()
    (found,) = head.propose([ask(state, tokens[1:], given[:N], 4)])
    assert found.ids[:, 0].tolist() == want["chain"].tolist()
    for i, logits in enumerate(want["chain_logits"]):
        check(found, i, logits, ids)
    state.close()
    head.close()


def check(found, position, logits, ids):
    expected = log_softmax(logits)
    order = np.argsort(-expected)[: len(found.ids[position])]
    wanted = order if ids is None else ids[order]
    assert set(wanted[:32].tolist()) <= set(found.ids[position].tolist())
    assert_close("scores", found.scores[position], expected[order], 1e-5)


@pytest.mark.parametrize("chunk", [1, 7, 13])
def test_chunks_are_one_reading(head, chunk):
    tokens, given = text()
    states = [reading(head, 16), reading(head, 16, chunk)]
    one, other = (head.propose([ask(s, tokens[17:20], given[16:19], 4)])[0] for s in states)
    assert_same_bits("scores", one.scores, other.scores)
    for state in states:
        assert state.length == 19
        state.close()


@pytest.mark.parametrize("params", [GREEDY, SampleParams(scale=1.0, seed=5)], ids=["greedy", "T 1"])
def test_a_batch_changes_nothing(head, params):
    tokens, given = text()
    sizes, wanted = (3, 16, 9, 1), (4, 1, 2, 7)
    asked = [(tokens[i + 1 : i + 1 + min(n, N - i)], given[i : i + n], n) for i, n in zip(sizes, wanted, strict=True)]
    alone = []
    for i, each in zip(sizes, asked, strict=True):
        state = reading(head, i)
        alone.append(head.propose([ask(state, *each, params=params, position=i)])[0])
        state.close()
    states = [reading(head, i) for i in sizes]
    together = head.propose(
        [ask(state, *a, params=params, position=i) for state, a, i in zip(states, asked, sizes, strict=True)]
    )
    for one, other in zip(alone, together, strict=True):
        assert one.ids.tolist() == other.ids.tolist()
        assert_same_bits("scores", one.scores, other.scores)
    for state in states:
        state.close()


def test_draft_positions_are_removed(head):
    """After a proposal, the cache holds only the text, so that later results do not depend on the proposal."""
    tokens, given = text()
    drafted, plain = reading(head, 10), reading(head, 10)
    head.propose([ask(drafted, tokens[11:13], given[10:12], 6)])
    head.read_all([Unread(plain, tokens[11:13], given[10:12])])
    one, other = (head.propose([ask(s, tokens[13:15], given[12:14], 3)])[0] for s in (drafted, plain))
    assert_same_bits("scores", one.scores, other.scores)
    drafted.close(), plain.close()


def test_embedding_and_head_of_the_target(tmp_path):
    """A head without an embedding drafts as one with the target's."""
    model, (tokens, given) = load(TARGET), text()
    found = []
    for i, embedding in enumerate((True, False)):
        folder = write_speculators(tmp_path / f"head{i}", embedding=embedding, draft=512)
        if embedding:
            edit(folder, model.embedding.unpacked().astype(np.float32))
        head = load_eagle(model, folder)
        state = head.state()
        found += head.propose([ask(state, tokens[1:5], given[:4], 3)])
        state.close()
        head.close()
    assert_same_bits("scores", *(each.scores for each in found))


def edit(folder, embedding):
    """Write a head again with another embedding, as float32."""
    found = tensors(settings(draft=512)) | {"embed_tokens.weight": embedding}
    (folder / "model.safetensors").write_bytes(safetensors(stored(found, "F32")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 112}, "is for a model of width 112, this one has 96"),
        ({"vocab_size": 500}, "is for a vocabulary of 500 tokens, this model has 512 ids"),
        ({"layers": (0, 1, 4)}, "reads layers 0, 1, 4, this model has layers 0 to 3"),
        ({"num_hidden_layers": 2}, "heads of 2 layers are not run"),
        ({"attention_bias": True}, "attention_bias"),
        ({"layer_types": ["sliding_attention"]}, "with a sliding window"),
        ({"intermediate_size": 100}, "feed forward 100, must be a multiple of 16"),
    ],
    ids=["width", "vocabulary", "layers", "two layers", "bias", "window", "ffn"],
)
def test_a_head_of_another_target(tmp_path, changes, message):
    with pytest.raises(Unsupported, match=message):
        load_eagle(load(TARGET), write_speculators(tmp_path / "head", **changes))


def test_damaged_heads_are_refused(tmp_path):
    folder = write_speculators(tmp_path / "head")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"norm_before_fc": True}))
    with pytest.raises(FormatError, match=r"misses 1 tensors: input_norm\.weight"):
        load_eagle(load(TARGET), folder)
    (folder / "config.json").write_text(json.dumps(about | {"architectures": ["Other"], "speculators_model_type": "x"}))
    with pytest.raises(Unsupported, match="of 'Other', which is no EAGLE-3 head"):
        load_eagle(load(TARGET), folder)
    with pytest.raises(NotFound, match="only block drafts are found by themselves"):
        load_eagle(load(TARGET), "auto")
    with pytest.raises(Unsupported, match=r"an EAGLE-3 head is a folder with a config\.json"):
        load_eagle(load(TARGET), "demo")


def test_a_vocabulary_that_it_can_not_choose(tmp_path):
    with pytest.raises(Unsupported, match="this draft has a vocabulary of its own, of 128 tokens"):
        load_eagle(load(TARGET), write_speculators(tmp_path / "one"), draft_vocab=90)
    with pytest.raises(RequestError, match="draft_vocab is 0"):
        load_eagle(load(TARGET), write_speculators(tmp_path / "two", draft=512), draft_vocab=0)


def test_layers_that_the_file_does_not_name(tmp_path):
    """SpecForge leaves them out where they are the usual ones: the second, the middle one and the fourth from the end."""
    folder = write_specforge(tmp_path / "head")
    about = json.loads((folder / "config.json").read_text())
    del about["eagle_config"]
    config = config_of(about, {})
    assert config.fitted(36, LAYER["vocab_size"]).target_layer_ids == (1, 17, 32)
