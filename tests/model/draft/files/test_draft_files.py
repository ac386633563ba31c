"""Files of draft models: every format, damaged files, and drafts of another target."""

import json
import logging
import math
from dataclasses import replace

import numpy as np
import pytest
from drafts import (
    KINDS,
    LAYERS,
    SECOND,
    SMALL,
    SPARK,
    VOCAB,
    json_config,
    random_weights,
    safetensors,
    shapes,
    target,
    write_folder,
    write_gguf,
)

from dflash.errors import FormatError, NotFound, RequestError, Unsupported
from dflash.model.config_sizes import RopeScaling
from dflash.model.draft import is_draft, load_draft, open_draft
from dflash.model.draft.config import default_target_layer_ids
from dflash.model.draft.files.folder import config_of as config_of_folder
from dflash.model.draft.files.names import expected
from dflash.model.loading.hub import resolve
from dflash.model.loading.settings import LoadSettings
from dflash.model.loading.target import load_model


def from_json(config, **changes):
    return config_of_folder(json_config(config, **changes), shapes(config))


def from_gguf(folder, config, **settings):
    path = write_gguf(folder / f"{len(list(folder.iterdir()))}.gguf", config, random_weights(config), **settings)
    return open_draft(path)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_both_forms_say_the_same(tmp_path, kind):
    config = KINDS[kind]
    got = from_gguf(tmp_path, config), from_json(config)
    for other in got:
        assert replace(other, norm_eps=config.norm_eps) == config
        assert other.norm_eps == pytest.approx(1e-6)


def test_what_is_looked_up_first():
    inner = {"mask_token_id": 5, "target_layer_ids": [1, 2], "block_size": 4, "sliding_window": 33}
    got = from_json(SMALL, dflash_config=inner, block_size=9, mask_token_id=7)
    assert (got.block, got.mask, got.target_layer_ids, got.windows) == (4, 5, (1, 2), (33, 0, 33))
    assert from_json(SMALL, dflash_config={}, mask_token_id=7, num_target_layers=LAYERS).mask == 7
    assert from_json(SMALL, block_size=None).block == 16


def test_default_target_layer_ids():
    assert default_target_layer_ids(1, 9) == (4,)
    assert default_target_layer_ids(5, 64) == (1, 16, 31, 46, 61)
    assert default_target_layer_ids(3, 8) == (1, 3, 5)  # of 1, 3 and 5
    assert default_target_layer_ids(2, 5) == (1, 2)
    assert default_target_layer_ids(5, 12) == (1, 3, 5, 7, 9)
    assert default_target_layer_ids(5, 14) == (1, 4, 6, 8, 11)  # 3.5 and 8.5 go to the even one
    got = from_json(SMALL, dflash_config={"mask_token_id": 1}, num_target_layers=14)
    assert got.target_layer_ids == default_target_layer_ids(3, 14) == (1, 6, 11)


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, (20, 0, 20), (True, False, True)),
        ({"layer_types": None}, (0, 0, 0), (False,) * 3),
        ({"is_causal": False}, (20, 0, 20), (False,) * 3),
        ({"is_causal": True}, (20, 0, 20), (True,) * 3),
        ({"causal": True}, (20, 0, 20), (True,) * 3),
        ({"causal": True, "is_causal": False}, (20, 0, 20), (False,) * 3),
        ({"use_swa": True}, (20, 0, 20), (True, False, True)),
        ({"use_swa": True, "layer_types": None}, (20,) * 3, (True,) * 3),
        ({"sliding_window": None, "swa_window_size": 9}, (9, 0, 9), (True, False, True)),
        ({"use_sliding_window": False}, (0, 0, 0), (True, False, True)),
        ({"sliding_window_non_causal": True}, (20, 0, 20), (False,) * 3),
    ],
)
def test_windows_and_causality(changes, windows, causal):
    got = from_json(SMALL, **changes)
    assert (got.windows, got.causal) == (windows, causal)


def test_windows_of_a_gguf(tmp_path):
    def got(**changes):
        made = from_gguf(tmp_path, SMALL, changes=changes)
        return made.windows, made.causal

    window, pattern = "attention.sliding_window", "attention.sliding_window_pattern"
    assert got() == ((20, 0, 20), (True, False, True))
    assert got(**{window: None, pattern: None}) == ((0,) * 3, (False,) * 3)
    assert got(**{window: 0, pattern: None}) == ((0,) * 3, (False,) * 3)
    assert got(**{pattern: None}) == ((20,) * 3, (True,) * 3)
    assert got(**{"attention.causal": True}) == ((20, 0, 20), (True,) * 3)
    assert from_gguf(tmp_path, SECOND).causal == (False,) * 3
    with pytest.raises(FormatError, match=r"'attention\.sliding_window' is missing"):
        got(**{window: 0})


def test_rotation_settings_are_read():
    assert from_json(SMALL, rope_theta=None, rope_parameters={"rope_theta": 5e5, "rope_type": "default"}).rope_base == 5e5
    assert (
        from_json(SMALL, rope_scaling={"type": "linear", "factor": 2.0}, max_position_embeddings=9).rope_scaling.kind
        == "linear"
    )
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    got = from_json(SMALL, rope_scaling=yarn).rope_scaling
    assert got == RopeScaling("yarn", 4.0, 1024, 1 + 0.1 * math.log(4), 1.0, 32.0, 1.0)
    scaling = from_json(SMALL, rope_scaling=yarn | {"attention_factor": 1.0}).rope_scaling
    assert scaling.attn_factor == 1
    for wrong in ("mystery", "dynamic", "longrope"):
        with pytest.raises(Unsupported, match=wrong):
            from_json(SMALL, rope_scaling={"rope_type": wrong, "factor": 2.0})
    llama3 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 1024}
    assert from_json(SMALL, rope_scaling=llama3).rope_scaling.beta_fast == 4
    with pytest.raises(FormatError, match=r"high_freq_factor' is 1\.0, must be more than low_freq_factor, 1"):
        from_json(SMALL, rope_scaling=llama3 | {"high_freq_factor": 1.0})
    with pytest.raises(FormatError, match="rope_theta"):
        from_json(SMALL, rope_theta=None)


def test_yarn_settings_that_would_divide_by_zero(tmp_path):
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    for name in ("beta_fast", "beta_slow"):
        with pytest.raises(FormatError, match=rf"'config\.{name}' is 0, must be a number from 1e-06"):
            from_json(SMALL, rope_scaling=yarn | {name: 0})
    with pytest.raises(FormatError, match=r"'config\.rope_theta' is 1, must be a number from 2"):
        from_json(SMALL, rope_scaling=yarn, rope_theta=1)
    assert from_json(SMALL, rope_theta=1).rope_base == 1
    keys = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "context_length": 1024}
    for name, value in (("rope.scaling.yarn_beta_fast", 0.0), ("rope.scaling.yarn_beta_slow", 0.0), ("rope.freq_base", 1.0)):
        with pytest.raises(FormatError, match=name):
            from_gguf(tmp_path, SMALL, changes=keys | {name: value})


def test_exports_of_speculators():
    inner = {"num_hidden_layers": 3, "hidden_size": SPARK.width, "vocab_size": VOCAB, "intermediate_size": SPARK.ffn}
    inner |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "rms_norm_eps": 1e-6}
    inner |= {"rope_parameters": {"rope_theta": 1e4}, "layer_types": json_config(SPARK)["layer_types"], "sliding_window": 20}
    config = {
        "architectures": ["DSparkSpeculator"],
        "transformer_layer_config": inner,
        "aux_hidden_state_layer_ids": [tap + 1 for tap in SPARK.target_layer_ids],
        "block_size": 6,
        "mask_token_id": SPARK.mask,
        "markov_rank": 16,
        "enable_confidence_head": True,
    }
    assert config_of_folder(config, shapes(SPARK)) == SPARK
    config["sample_from_anchor"] = False
    assert config_of_folder(config, shapes(SPARK)).max_draft == 5
    config |= {"architectures": ["DFlashSpeculator"], "enable_confidence_head": False}
    assert config_of_folder(config, shapes(SMALL)) == SMALL


FORK_KEYS = {
    "block_size": None,
    "target_layers": None,
    "tokenizer.ggml.mask_token_id": None,
    "dflash.block_size": SMALL.block,
    "dflash.target_layer_ids": list(SMALL.target_layer_ids),
    "dflash.mask_token_id": SMALL.mask,
    "dflash.n_target_layers": 3,
}


@pytest.mark.parametrize("architecture", ["dflash-draft", "qwen35-dflash-draft"])
@pytest.mark.parametrize("separator", ["dflash.", "dflash_"])
def test_files_from_before_the_mainline(tmp_path, architecture, separator, caplog):
    weights = random_weights(SMALL)
    names = {"fc.weight": f"{separator}fc.weight", "enc.output_norm.weight": f"{separator}hidden_norm.weight"}
    if separator == "dflash_":
        names |= {f"blk.{i}.ffn_norm.weight": f"blk.{i}.post_attention_norm.weight" for i in range(3)}
    old = {names.get(name, name): value for name, value in weights.items()}
    path = write_gguf(tmp_path / "x.gguf", SMALL, old, architecture=architecture, changes=FORK_KEYS)
    config, source = open_draft(path)
    assert replace(config, norm_eps=SMALL.norm_eps) == SMALL
    for name, value in weights.items():
        np.testing.assert_array_equal(source.vector(name), value)
    with caplog.at_level(logging.WARNING):
        draft = load_draft(path, target(rope_base=1e7), sequences=1)
    assert draft.config.rope_base == 1e7
    assert "10000" in caplog.text
    assert "1e+07" in caplog.text
    caplog.clear()
    load_draft(path, target(), sequences=1)
    assert not caplog.records


def test_the_base_of_other_files_stands(tmp_path, caplog):
    path = write_gguf(tmp_path / "x.gguf", SMALL, random_weights(SMALL))
    assert load_draft(path, target(rope_base=1e7), sequences=1).config.rope_base == 1e4
    assert not caplog.records


def test_a_folder_is_found_by_any_of_its_files(tmp_path):
    folder = write_folder(tmp_path / "draft", SMALL, random_weights(SMALL))
    for path in (folder, folder / "config.json", folder / "model.safetensors"):
        assert is_draft(path)
        assert open_draft(path)[0] == SMALL


def test_weights_in_several_files(tmp_path):
    weights = random_weights(SMALL)
    folder = write_folder(tmp_path / "draft", SMALL, weights, drop=("fc.weight",))
    (folder / "more.safetensors").write_bytes(safetensors({"fc.weight": ("F32", weights["fc.weight"])}))
    with pytest.raises(FormatError, match="2 safetensors files and no"):
        load_draft(folder, target(), sequences=1)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"fc.weight": "more.safetensors", "norm.weight": "model.safetensors"}}))
    load_draft(folder, target(), sequences=1)
    index.write_text(json.dumps({"weight_map": {"fc.weight": "../draft/more.safetensors"}}))
    with pytest.raises(FormatError, match="weight_map"):
        load_draft(folder, target(), sequences=1)
    index.write_text(json.dumps({"weight_map": {"fc.weight": "gone.safetensors"}}))
    with pytest.raises(NotFound, match="gone"):
        load_draft(folder, target(), sequences=1)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"width": 64}, "for a model of width 48, this one has 64"),
        ({"n_vocab": 999}, "for a vocabulary of 203 tokens, this model has 999"),
        ({"n_layers": 8}, "reads layer 8, this model has layers 0 to 7"),
    ],
)
def test_drafts_of_another_target(tmp_path, changes, text):
    path = write_gguf(tmp_path / "x.gguf", SMALL, random_weights(SMALL))
    with pytest.raises(Unsupported, match=text) as raised:
        load_draft(path, target(**changes), sequences=1)
    assert "\n" not in str(raised.value)


def test_a_mask_or_words_that_the_target_does_not_have(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", SMALL, random_weights(SMALL), changes={"tokenizer.ggml.mask_token_id": 203})
    with pytest.raises(Unsupported, match="mask token 203, this model's ids are 0 to 202"):
        load_draft(path, target(), sequences=1)
    words = [f"word{i}" for i in range(VOCAB)]
    path = write_gguf(tmp_path / "y.gguf", SMALL, random_weights(SMALL), changes={"tokenizer.ggml.tokens": words})
    model = target()
    model.weights.metadata["tokenizer.ggml.tokens"] = words
    load_draft(path, model, sequences=1)
    model.weights.metadata["tokenizer.ggml.tokens"] = words[::-1]
    with pytest.raises(Unsupported, match="another vocabulary: its token 0 is 'word0', this model's 'word202'"):
        load_draft(path, model, sequences=1)


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, Unsupported, "'LlamaForCausalLM', which is no draft"),
        ({"architectures": None}, FormatError, "'config.architectures' is missing"),
        ({"attention_bias": True}, Unsupported, "biases"),
        ({"hidden_act": "gelu"}, Unsupported, "'gelu'"),
        ({"lilicorr_hidden_size": 64}, Unsupported, "LiLiCorr"),
        ({"block_size": 1}, Unsupported, "blocks of 1 rows"),
        ({"block_size": 64}, Unsupported, "blocks of 64 rows"),
        ({"head_dim": 20}, Unsupported, "heads of 20"),
        ({"num_key_value_heads": 3}, FormatError, "4 heads are no multiple of 3"),
        ({"layer_types": ["sliding_attention"]}, FormatError, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 3}, FormatError, "chunked_attention"),
        ({"sliding_window": None}, FormatError, "'config.sliding_window' is missing"),
        ({"dflash_config": {"target_layer_ids": [1]}}, FormatError, "mask_token_id"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 1]}}, FormatError, "different"),
        ({"dflash_config": [1]}, FormatError, "dflash_config"),
        ({"rope_theta": "10000"}, FormatError, "rope_theta"),
        ({"is_causal": 1}, FormatError, "is_causal"),
    ],
)
def test_unsupported_settings_are_refused(changes, kind, text):
    with pytest.raises(kind, match=text):
        from_json(SMALL, **changes)


def test_refused_markov_heads():
    for name in ("gated", "rnn"):
        with pytest.raises(Unsupported, match=f"'{name}' Markov head"):
            from_json(SPARK, markov_head_type=name)
    with pytest.raises(FormatError, match="markov_w1"):
        config_of_folder(json_config(SPARK), shapes(SMALL))


@pytest.mark.parametrize("form", ["gguf", "folder"])
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_are_checked(tmp_path, form, kind):
    config, weights = KINDS[kind], random_weights(KINDS[kind])

    def load(weights, drop=()):
        name = str(len(list(tmp_path.iterdir())))
        if form == "gguf":
            return load_draft(write_gguf(tmp_path / f"{name}.gguf", config, weights, drop=drop), target(), sequences=1)
        return load_draft(write_folder(tmp_path / name, config, weights, drop=drop), target(), sequences=1)

    load(weights)
    optional = {"token_embd.weight", "output.weight", "d2t", "conf_proj.bias"}
    for missing in sorted(set(expected(config, VOCAB, VOCAB)) - optional):
        if missing in {"selector_hidden.weight", "markov_w1.weight"}:
            continue  # these tell the kind
        with pytest.raises(FormatError, match=missing):
            load(weights, drop=(missing,))
    with pytest.raises(FormatError, match=r"attn_k\.weight.* has shape"):
        load(weights | {"blk.1.attn_k.weight": weights["blk.1.attn_k.weight"][:-16]})
    for extra in ("blk.0.attn_sinks.weight", "fc.scale", "blk.1.attn_q.bias", "lilicorr.weight"):
        with pytest.raises(Unsupported, match=extra):
            load(weights | {extra: np.ones(4, np.float32)})


def test_confidence_without_the_markov_code_is_refused(tmp_path):
    weights = random_weights(SPARK)
    weights["conf_proj.weight"] = weights["conf_proj.weight"][:, : SPARK.width]
    for path in (write_gguf(tmp_path / "x.gguf", SPARK, weights), write_folder(tmp_path / "x", SPARK, weights)):
        with pytest.raises(Unsupported, match=r"reads the hidden state alone \(48 numbers\): only one that reads"):
            load_draft(path, target(), sequences=1)


def test_vocabularies_of_their_own_are_checked(tmp_path):
    def load(config, weights):
        path = write_gguf(tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", config, weights)
        return load_draft(path, target(), sequences=1)

    weights = random_weights(SMALL, n_head=50, own=("output.weight", "d2t"))
    load(SMALL, weights)
    with pytest.raises(FormatError, match=r"no head 'output\.weight'"):
        load(SMALL, {name: value for name, value in weights.items() if name != "output.weight"})
    with pytest.raises(FormatError, match="a different token of the target"):
        load(SMALL, weights | {"d2t": np.zeros(50, np.int64)})
    with pytest.raises(FormatError, match=f"names token {VOCAB}"):
        load(SMALL, weights | {"d2t": np.arange(VOCAB - 49, VOCAB + 1)})
    with pytest.raises(FormatError, match="I64 or I32"):
        load(SMALL, weights | {"d2t": weights["d2t"].astype(np.float32)})
    with pytest.raises(Unsupported, match="DFlash 2 draft with a vocabulary of its own"):
        load(SECOND, random_weights(SECOND, n_head=50, own=("output.weight", "d2t")))


def test_a_folder_without_a_config_is_refused(tmp_path):
    path = write_gguf(tmp_path / "x.gguf", SMALL, random_weights(SMALL))
    for wrong in ({"sequences": 0}, {"sequences": 1, "context": 0}, {"sequences": 1, "min_confidence": 1.5}):
        with pytest.raises(RequestError, match="draft: sequences"):
            load_draft(path, target(), **wrong)
    with pytest.raises(Unsupported, match="'cuda' needs a model on a GPU, this one runs on the CPU"):
        load_draft(path, target(), sequences=1, device="cuda")
    with pytest.raises(NotFound, match="no such file"):
        load_draft(tmp_path / "gone.gguf", target(), sequences=1)
    with pytest.raises(FormatError, match=r"config\.json"):
        load_draft(tmp_path, target(), sequences=1)


def test_targets_are_no_drafts_and_drafts_no_targets():
    assert is_draft(resolve("demo-draft"))
    assert not is_draft(resolve("demo"))
    with pytest.raises(Unsupported, match="'qwen35' is no draft model"):
        load_draft("demo", target(), sequences=1)
    with pytest.raises(Unsupported, match="is a draft model: load its target"):
        load_model("demo-draft", LoadSettings(device="cpu"))
