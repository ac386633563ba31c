"""Recording a model's texts, and the files of drafts; needs no torch."""

import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from train_draft import gguf_files, recording

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
    assert [ids[: len(lm.encode(start))] for ids, start in zip(texts, recording.STARTS, strict=False)] == [
        lm.encode(start) for start in recording.STARTS[:2]
    ]
    again = recording.write_texts(lm, recording.STARTS[:1], copies=2, max_tokens=12)
    assert again[0] == texts[0]
    assert again[1] != texts[0]


def test_hidden_states_give_the_models_logits(lm, texts, text, pools):
    _, head = recording.tables(lm)
    assert text.tokens.tolist() == texts[0]
    assert_close("logits", text.hidden.astype(np.float32) @ head.T, lm.logits(texts[0]), 2e-3)


def test_features_are_outputs_of_layers(lm, text):
    """Each layer adds to the stream; the captured outputs are different and of the model's width."""
    assert text.features.shape == (len(text.tokens), len(LAYERS), lm.model.config.width)
    other = recording.record(lm, [text.tokens], LAYERS[::-1])[0]
    assert_same_bits("features", other.features, text.features[:, ::-1])
    assert np.abs(text.features[:, 0] - text.features[:, 1]).max() > 0.1


def small(lm):
    of = lm.model.config
    sizes = {"width": of.width, "ffn": 64, "n_layers": 2, "heads": 2, "kv_heads": 1, "head_size": 32, "n_vocab": of.n_vocab}
    places = {"block": 4, "mask": of.n_vocab - 1, "target_layer_ids": LAYERS, "windows": (64, 0), "causal": (True, False)}
    return DraftConfig(kind="dflash", norm_eps=float(np.float32(1e-6)), rope_base=1e4, rope_scaling=None, **sizes, **places)


def random_weights(config):
    rng = np.random.default_rng(0)
    shapes = {name: shape for name, shape in expected(config, 1, 1).items() if name not in OPTIONAL}
    return {name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[-1])) for name, shape in shapes.items()}


def test_a_draft_is_read_back(lm, tmp_path):
    config = small(lm)
    weights = random_weights(config)
    found, source = open_draft(gguf_files.write_draft(tmp_path / "draft.gguf", config, weights))
    assert found == config
    for name, value in weights.items():
        if value.ndim == 1:
            assert_same_bits(name, source.vector(name), value)
        else:
            assert_same_bits(name, source.matrix(name).unpacked(), value.astype(np.float16).astype(np.float32))
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
