"""Drafts and heads in the layouts of other programs: what survives, and what a layout can not hold."""

import json
from dataclasses import replace

import pytest
from drafts import KINDS, SMALL, VOCAB, random_weights, write_folder, write_gguf
from eagle_heads import CASES, write_specforge, write_speculators

import dflash
from dflash.errors import RequestError, Unsupported
from dflash.model.draft import open_draft
from dflash.model.draft.files.safetensors import open_folder
from dflash.model.eagle.files import open_eagle
from dflash.model.export import export_draft


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
