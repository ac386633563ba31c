"""Recording a model's texts, and the files of drafts; needs no torch."""

import json
from itertools import islice

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from train_draft import gguf_files, measure, prompts, recording
from train_draft.prompts import mixed

import dflash
from dflash.decode.drafting.shapes import Chain
from dflash.model.draft.config import DraftConfig
from dflash.model.draft.files.names import OPTIONAL, expected
from dflash.model.draft.files.open_draft import open_draft

LAYERS = 2, 4


@pytest.fixture(scope="module")
def texts(lm):
    return recording.write_texts(lm, recording.STARTS[:2], copies=1, max_tokens=12)


@pytest.fixture(scope="module")
def text(lm, texts):
    return recording.record(lm, texts[:1], LAYERS)[0]


def test_texts_begin_as_asked_and_differ_by_copy(lm, texts):
    assert [text.tokens[: text.prompt] for text in texts] == [lm.encode(start) for start in recording.STARTS[:2]]
    again = recording.write_texts(lm, recording.STARTS[:1], copies=2, max_tokens=12)
    assert again[0] == texts[0]
    assert again[1] != texts[0]


def test_hidden_states_give_the_models_logits(lm, texts, text, pools):
    _, head = recording.tables(lm)
    assert text.tokens.tolist() == texts[0].tokens
    assert_close("logits", text.hidden.astype(np.float32) @ head.T, lm.logits(texts[0].tokens), 2e-3)


def test_features_are_outputs_of_layers(lm, texts, text):
    """Each layer adds to the stream; the captured outputs are different and of the model's width."""
    assert text.features.shape == (len(text.tokens), len(LAYERS), lm.model.config.width)
    other = recording.record(lm, texts[:1], LAYERS[::-1])[0]
    assert_same_bits("features", other.features, text.features[:, ::-1])
    assert np.abs(text.features[:, 0] - text.features[:, 1]).max() > 0.1


def test_texts_read_together_are_as_read_alone(lm, texts, text, monkeypatch):
    """Also where a text is longer than a forward's chunk."""
    together = recording.record(lm, texts, LAYERS)
    assert [one.prompt for one in together] == [one.prompt for one in texts]
    monkeypatch.setattr(lm.model, "prefill_chunk", 5)
    parts = recording.record(lm, texts[1:], LAYERS)[0]
    for got, want in ((together[0], text), (parts, together[1])):
        for name in ("tokens", "features", "hidden"):
            assert_same_bits(name, getattr(got, name), getattr(want, name))


def test_equal_prompts_get_different_texts_and_no_text_comes_twice(lm, pools):
    """Seeds belong to the text, not to the round; a greedy round has one text for equal prompts."""
    prompts = iter([lm.encode("import")] * 12)
    found = recording.write_until(lm, prompts, lambda n: n >= 12, at_once=4, max_tokens=10)
    assert len({tuple(text.tokens) for text in found}) == len(found) > 5
    again = recording.continued(lm, [lm.encode("import")], 10, seeds=[5], temperature=0.7)
    assert again[0] in found


def test_requests_that_a_model_writes_are_none_that_measure_a_draft(lm, pools, monkeypatch):
    """The first one is known here as one that measures; the others are chats that end where the answer begins."""
    rng = [np.random.default_rng(3) for _ in range(2)]
    found = list(islice(prompts._own_requests(lm, rng[0], 4), 4))
    shown = [lm.tokenizer.decode(ids) for ids in found]
    assert all(text.count("<|im_start|>user") == 1 and text.rstrip().endswith(("<think>", "</think>")) for text in shown)
    asked = shown[0].split("<|im_start|>user\n")[1].split("<|im_end|>")[0]
    case = dflash.load_prompts("agent")[0]._replace(prompt=[{"role": "user", "content": asked}])
    monkeypatch.setattr(prompts.dflash, "load_prompts", lambda name: [case])
    others = [lm.tokenizer.decode(ids) for ids in islice(prompts._own_requests(lm, rng[1], 4), 3)]
    assert not any(f"\n{asked}<|im_end|>" in text for text in others)


def test_saved_texts_are_read_back(texts, tmp_path):
    recording.save_texts(tmp_path / "texts.npz", texts)
    assert recording.load_texts(tmp_path / "texts.npz") == texts


def test_prompts_of_a_training(lm, pools):
    """Chats, whose requests the model wrote, and other texts; none too long, and none that measures the draft afterwards."""
    some = list(islice(mixed(lm, longest=60, at_once=8), 24))
    shown = [lm.tokenizer.decode(ids) for ids in some]
    assert 3 < sum("Explain" in text or "Write" in text or "<|im_start|>" in text for text in shown) < 21
    assert max(map(len, some)) <= 60
    assert some[:4] == list(islice(mixed(lm, longest=60, at_once=8), 4))
    assert some[:4] != list(islice(mixed(lm, longest=60, at_once=8, seed=1), 4))
    measured = [lm.encode(case.prompt) for name in ("code", "prose", "copy", "agent") for case in dflash.load_prompts(name)]
    assert not any(ids in measured for ids in some)


def small(lm):
    of = lm.model.config
    sizes = {"width": of.width, "ffn": 64, "n_layers": 2, "heads": 2, "kv_heads": 1, "head_size": 32, "n_vocab": of.n_vocab}
    places = {"block": 4, "mask": of.n_vocab - 1, "target_layer_ids": LAYERS, "windows": (64, 0), "causal": (True, False)}
    return DraftConfig(kind="dflash", norm_eps=float(np.float32(1e-6)), rope_base=1e4, rope_scaling=None, **sizes, **places)


def random_weights(config):
    rng = np.random.default_rng(0)
    shapes = {name: shape for name, shape in expected(config, 1, 1).items() if name not in OPTIONAL}
    return {name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1])) for name, shape in shapes.items()}


@pytest.mark.parametrize(("kind", "step"), [("F16", 2**-11), ("Q8_0", 2**-7)])
def test_a_draft_is_read_back(lm, tmp_path, kind, step):
    """A rounded weight is off by half a step of its type, relative to the largest of 32 neighbours at most."""
    config = small(lm)
    weights = random_weights(config)
    found, source = open_draft(gguf_files.write_draft(tmp_path / "draft.gguf", config, weights, kind=kind))
    assert found == config
    for name, value in weights.items():
        if value.ndim == 1:
            assert_same_bits(name, source.vector(name), value)
        else:
            largest = np.abs(value.reshape(-1, 32)).max(1).repeat(32).reshape(value.shape)
            assert (np.abs(source.matrix(name).unpacked() - value) <= step * largest).all(), name
    source.close()


def test_a_written_draft_changes_no_output(lm, tmp_path, pools):
    config = small(lm)
    path = gguf_files.write_draft(tmp_path / "draft.gguf", config, random_weights(config))
    plain, drafted = (lm.generate("import os", strategy=each, max_tokens=8) for each in ("plain", dflash.DFlash(str(path))))
    assert drafted.tokens == plain.tokens
    assert sum(step.drafted for step in drafted.steps)


def test_the_demos_head_in_a_file_of_its_own(lm, tmp_path, pools):
    """Written with its own weights, it drafts as the head in the model's file, but for the rounding to halves."""
    block = f"blk.{lm.model.config.n_layers}."
    named = [name for name in lm.file.tensors if name.startswith(block)]
    of_block = lm.model.weights.block(lm.model.config.n_layers)
    weights = {}
    for name in (name.removeprefix(block) for name in named):
        n_axes = len(lm.file.tensors[block + name].shape)
        weights[name] = of_block.vector(name) if n_axes == 1 else of_block.matrix(name).unpacked()
    path = gguf_files.write_mtp(tmp_path / "mtp.gguf", lm.file.path, weights)
    heads = dflash.MTP(), dflash.MTP(file=str(path))
    own, other = (lm.generate("import os\n", strategy=dflash.Strategy(head, Chain(3)), max_tokens=24) for head in heads)
    assert other.tokens == own.tokens
    assert sum(step.accepted for step in other.steps) >= sum(step.accepted for step in own.steps) - 2 > 0


def test_huge_features_stay_finite():
    """Some models have activations beyond the largest half at their first token."""
    assert recording._host(np.array([[1e6, -1e6, 2]], np.float32)).tolist() == [[recording.MOST, -recording.MOST, 2]]


def test_cpu_times_of_strategies(lm, capsys, pools):
    """One line for each; plain decoding is the unit and has one token a step."""
    measure.cpu_time(lm, {"copy": dflash.Strategy.of("lookup")}, dflash.load_prompts("copy")[:2], max_tokens=12)
    plain, copied = capsys.readouterr().out.splitlines()
    assert plain.startswith("plain    1.00 tokens per step,")
    assert plain.endswith(" 1.00 x")
    assert copied.startswith("copy ")


def test_measured_numbers_are_written(lm, tmp_path, pools):
    file = tmp_path / "measured.jsonl"
    settings = {"sets": ["code"], "prompts": 1, "max_tokens": 6, "temperatures": (0.0, 1.0)}
    measure.measure(lm, {"copy": dflash.Strategy.of("lookup")}, file, **settings)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["set"], line["temperature"], line["same_text"]) for line in lines] == [
        ("code", 0, True),
        ("code", 1, True),
    ]
    assert [row["name"] for row in lines[0]["strategies"]] == ["plain", "copy"]
