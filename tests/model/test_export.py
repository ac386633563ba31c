"""Drafts and heads in the layouts of other programs: what survives, and what a layout can not hold."""

import json
from dataclasses import replace

import numpy as np
import pytest
from compare import assert_same_bits
from drafts import KINDS, SMALL, VOCAB, random_weights, write_folder, write_gguf
from eagle_heads import CASES, write_specforge, write_speculators
from golden import load, path_of
from mtp_text import reading, text

import dflash
from dflash.errors import RequestError, Unsupported
from dflash.kernels.sample import SampleParams
from dflash.model.draft import open_draft
from dflash.model.draft.files.safetensors import Entry, open_folder, write_safetensors
from dflash.model.eagle.files import open_eagle
from dflash.model.export import export_draft
from dflash.model.gguf.tensor_check import expected_tensors
from dflash.model.loading.mtp import load_mtp
from dflash.model.loading.mtp_folder import NAMES, MtpFolder
from dflash.model.recurrent_head import HeadRequest


def tensors(folder):
    """Types, shapes and bytes by name."""
    return {
        name: (entry.type, entry.shape, entry.data.tobytes())
        for file in open_folder(folder)
        for name, entry in file.tensors.items()
    }


@pytest.mark.parametrize("own", [(), ("token_embd.weight", "output.weight", "d2t")], ids=["shared", "own vocabulary"])
@pytest.mark.parametrize("kind", KINDS)
def test_block_drafts_there_and_back(kind, own, tmp_path):
    """From the layout of their authors to that of speculators and back."""
    if kind == "dflash2" and own:
        pytest.skip("has no vocabulary of its own")
    config = replace(KINDS[kind], windows=(20, 0, 20) if kind != "dflash2" else (20,) * 3)
    weights = random_weights(config, own=own, n_head=64 if own else None)
    first = write_folder(tmp_path / "first", config, weights, kind="BF16")
    there, back = (tmp_path / name for name in ("there", "back"))
    assert dflash.export_draft(first, there, "speculators", target="org/model").kind == kind
    assert dflash.export_draft(there, back, "z-lab").n_bytes == sum(len(data) for *_, data in tensors(back).values())
    about = json.loads((there / "config.json").read_text())
    assert about["transformer_layer_config"]["hidden_size"] == config.width
    assert about["aux_hidden_state_layer_ids"] == [layer + 1 for layer in config.target_layer_ids]
    assert about["speculators_config"]["verifier"]["name_or_path"] == "org/model"
    for folder in (first, there, back):
        assert open_draft(folder)[0] == config
        found = tensors(folder)
        found.pop("t2d", None)
        assert found == {name: tensors(first)[name] for name in found} == tensors(first)


@pytest.mark.parametrize("write", [write_speculators, write_specforge])
@pytest.mark.parametrize("name", CASES)
def test_heads_there_and_back(name, write, tmp_path):
    first, other = write(tmp_path / "first", **CASES[name]), "speculators" if write is write_specforge else "specforge"
    export_draft(first, tmp_path / "there", other)
    export_draft(tmp_path / "there", tmp_path / "back", "specforge" if other == "speculators" else "speculators")
    assert tensors(tmp_path / "back") == tensors(first)
    assert ("midlayer.mlp.up_proj.weight" in tensors(tmp_path / "there")) == (other == "specforge")
    assert {open_eagle(tmp_path / folder)[0] for folder in ("first", "there", "back")} == {open_eagle(first)[0]}


LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize("scaling", [{"rope_type": "linear"}, LLAMA3], ids=["linear", "llama3"])
def test_rotary_scaling_there_and_back(scaling, tmp_path):
    rope = scaling | {"rope_theta": 5e5, "factor": 8.0, "original_max_position_embeddings": 2048}
    first = write_speculators(tmp_path / "first", rope_parameters=rope, partial_rotary_factor=0.5)
    export_draft(first, tmp_path / "there", "specforge")
    config = open_eagle(first)[0]
    assert (config.rope_scaling.kind, config.n_rot) == (scaling["rope_type"], 16)
    assert open_eagle(tmp_path / "there")[0] == config


def test_a_gguf_file_becomes_a_folder(tmp_path):
    """The map of a draft vocabulary, ids in a GGUF file, becomes offsets and its inverse."""
    own = ("token_embd.weight", "output.weight", "d2t")
    weights = random_weights(SMALL, own=own, n_head=64)
    path = write_gguf(tmp_path / "draft.gguf", SMALL, weights)
    export_draft(path, tmp_path / "folder", "speculators")
    config, source = open_draft(tmp_path / "folder")
    assert config == open_draft(path)[0]
    assert source.targets().tolist() == weights["d2t"].tolist()
    assert (
        json.loads((tmp_path / "folder" / "config.json").read_text())["transformer_layer_config"]["max_position_embeddings"]
        == 4096
    )
    kind, shape, data = tensors(tmp_path / "folder")["t2d"]
    assert (kind, shape, sum(data)) == ("BOOL", (VOCAB,), 64)


def test_what_a_layout_can_not_hold(tmp_path):
    folder = write_folder(tmp_path / "draft", SMALL, random_weights(SMALL))
    head = write_speculators(tmp_path / "head")
    with pytest.raises(Unsupported, match="layout 'specforge' is not of block drafts"):
        export_draft(folder, tmp_path / "out", "specforge")
    with pytest.raises(Unsupported, match="layout 'z-lab' is not of EAGLE-3 heads"):
        export_draft(head, tmp_path / "out", "z-lab")
    with pytest.raises(RequestError, match=r"layout: 'gguf' is not known; there are z-lab, specforge, speculators"):
        export_draft(head, tmp_path / "out", "gguf")
    with pytest.raises(RequestError, match="holds a model already"):
        export_draft(folder, head)
    with pytest.raises(Unsupported, match=r"is Q4_K, safetensors can't hold it: take an unquantized file"):
        export_draft("demo-draft", tmp_path / "out")
    scaled = write_folder(tmp_path / "scaled", SMALL, random_weights(SMALL), output_multiplier=2.0)
    with pytest.raises(Unsupported, match="scales of logits and embeddings are not of the layout of speculators"):
        export_draft(scaled, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["qwen35-r2-mtp-F16"])
def test_an_mtp_head_there_and_back(name, tmp_path):
    """The head of a GGUF file in the layout of speculators drafts with the same bits; a second copy has the same ones."""
    model, (tokens, hidden) = load(name), text()
    assert export_draft(path_of(name), tmp_path / "head", target="org/model").kind == "mtp"
    export_draft(tmp_path / "head", tmp_path / "again")
    assert tensors(tmp_path / "again") == tensors(tmp_path / "head")
    assert (tmp_path / "again" / "config.json").read_text() == (tmp_path / "head" / "config.json").read_text()
    found = []
    for file in (None, tmp_path / "head"):
        head = load_mtp(model, file)
        state = reading(head, 30)
        found += head.propose([HeadRequest(state, tokens[31:33], hidden[30:32], 3, SampleParams(), 33, 8)])
        state.close()
        head.close()
    assert_same_bits("scores", *(each.scores for each in found))


def test_a_checkpoint_that_holds_an_mtp_head(tmp_path):
    """Names of published checkpoints, between those of the trunk, which are left out."""
    name = "qwen35-r2-mtp-F16"
    export_draft(path_of(name), tmp_path / "head")
    (file,) = open_folder(tmp_path / "head")
    renamed = {"input_proj": "fc", "final_layernorm": "norm", "hidden_layernorm": "pre_fc_norm_hidden"}
    renamed |= {"token_layernorm": "pre_fc_norm_embedding"}
    native = {"model.language_model.norm.weight": next(iter(file.tensors.values()))}
    for full, entry in file.tensors.items():
        short = full.removeprefix("mtp_layers.0.")
        first = short.partition(".")[0]
        native[f"mtp.{renamed[first]}.weight" if first in renamed else f"mtp.layers.0.{short}"] = entry
    about = json.loads((tmp_path / "head" / "config.json").read_text())
    whole = tmp_path / "whole"
    whole.mkdir()
    write_safetensors(whole / "model.safetensors", native, {})
    layer = about["transformer_layer_config"]
    (whole / "config.json").write_text(json.dumps({"architectures": ["X"], "model_type": "qwen3_5", "text_config": layer}))
    export_draft(whole, tmp_path / "back")
    assert tensors(tmp_path / "back") == tensors(tmp_path / "head")
    assert load_mtp(load(name), whole).device == "cpu"
    with pytest.raises(Unsupported, match="another model: its width is 96, the model's 64"):
        load_mtp(load("qwen35moe-r2-F16"), whole)
    with pytest.raises(Unsupported, match="MTP heads in folders are not run for qwen3, only for"):
        load_mtp(load("qwen3-dense-Q4_0"), whole)
    with pytest.raises(Unsupported, match="layout 'z-lab' is not of MTP heads"):
        export_draft(whole, tmp_path / "out", "z-lab")


def test_experts_of_a_head_in_a_folder(tmp_path):
    """Gate and up projections of all experts lie in one tensor, a half each; norms get the 1 that GGUF files hold."""
    config, rng = load("qwen35moe-r2-F16").config, np.random.default_rng(1)
    shapes = expected_tensors(replace(config, n_mtp=1), [fused := f"blk.{config.n_layers}.ffn_gate_up_exps.weight"])
    names = {canonical: name for name, canonical in NAMES.items()}
    values = {
        names[name.removeprefix(f"blk.{config.n_layers}.")]: rng.standard_normal(shape, np.float32)
        for name, shape in {fused: shapes[fused], **shapes}.items()
        if name.startswith(f"blk.{config.n_layers}.")
    }
    values["final_layernorm.weight"] = rng.standard_normal(config.width, np.float32)
    folder = tmp_path / "head"
    folder.mkdir()
    about = {"speculators_model_type": "mtp", "transformer_layer_config": {"hidden_size": config.width}}
    (folder / "config.json").write_text(json.dumps(about))
    stored = {f"mtp_layers.0.{name}": Entry(x.shape, "F32", x.reshape(-1).view(np.uint8)) for name, x in values.items()}
    write_safetensors(folder / "model.safetensors", stored, {})
    head = MtpFolder(folder, config)
    for i, part in enumerate(("gate", "up")):
        got = head.matrix(f"ffn_{part}_exps.weight").unpacked()
        np.testing.assert_array_equal(got, np.split(values["mlp.experts.gate_up_proj"], 2, axis=1)[i])
    np.testing.assert_array_equal(head.vector("attn_norm.weight"), values["input_layernorm.weight"] + np.float32(1))
    load_mtp(load("qwen35moe-r2-F16"), folder).compile()


def test_no_mtp_head_to_write(tmp_path):
    with pytest.raises(Unsupported, match=r"qwen35-r2-untied-F32\.gguf: holds no MTP block"):
        export_draft(path_of("qwen35-r2-untied-F32"), tmp_path / "out")
    with pytest.raises(Unsupported, match="the folder holds no MTP head"):
        load_mtp(load("qwen35-r2-mtp-F16"), write_speculators(tmp_path / "eagle"))
