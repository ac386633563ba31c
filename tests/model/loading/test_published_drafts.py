import json
from functools import partial

import pytest
from golden import load
from hub_stand_in import serve_hub

import dflash
from dflash import DFlash
from dflash.errors import NotFound, RequestError
from dflash.model.loading import published_drafts
from dflash.model.loading.hub import resolve
from dflash.model.loading.published_drafts import OWN_TABLE, PUBLISHED, draft_of


def test_the_demo_finds_its_draft(lm):
    with_draft = lm.generate("import os", strategy=dflash.DFlash("auto"), max_tokens=12)
    assert with_draft.tokens == lm.generate("import os", max_tokens=12).tokens
    assert with_draft.tokens_per_step > 1


@pytest.mark.parametrize(
    ("metadata", "name", "key"),
    [
        ({"general.name": "Qwen3.6-27B"}, "x.gguf", "qwen3.6-27b"),
        ({"general.name": "Qwen3.6 27B"}, "x.gguf", "qwen3.6-27b"),
        ({"general.basename": "Qwen3.5", "general.size_label": "4B"}, "x.gguf", "qwen3.5-4b"),
        ({"general.basename": "Qwen3.5-9B"}, "x.gguf", "qwen3.5-9b"),
        ({"general.name": "my tune", "general.base_model.0.name": "Qwen3.5 35B A3B"}, "x.gguf", "qwen3.5-35b-a3b"),
        ({"general.name": "Qwen3.6-27B", "general.base_model.0.name": "Qwen3.5-122B-A10B"}, "x.gguf", "qwen3.6-27b"),
        ({}, "Qwen3-Coder-30B-A3B-Instruct-Q4_K_M.gguf", "qwen3-coder-30b-a3b"),
        ({}, "unsloth_Qwen3.6-35B-A3B-UD-Q4_K_XL.gguf", "qwen3.6-35b-a3b"),
    ],
)
def test_a_target_is_known_by_what_its_file_says(metadata, name, key, tmp_path):
    assert draft_of(metadata, tmp_path / name) == PUBLISHED[key]


@pytest.mark.parametrize("name", ["Qwen3.5-2B", "Qwen3.5-27B2", "Llama-3.1-8B", "xQwen3.6-27Bx", "Qwen3.6"])
def test_another_model_has_none(name, tmp_path):
    with pytest.raises(NotFound, match=f"draft auto: no draft model is known for '{name.lower()}'"):
        draft_of({"general.name": name}, tmp_path / "model.gguf")


def test_a_strategy_by_name_downloads_nothing(monkeypatch):
    """A block draft without a file is the demo's or one beside the target: never another model's, never a download."""
    model = load("llama-tiny-Q8_0")
    with pytest.raises(NotFound, match=r"^draft: no draft model is known for '.*'; give its file"):
        DFlash().load(model)
    monkeypatch.setattr(published_drafts, "PUBLISHED", {"llama-tiny": "hf:org/draft"})
    with pytest.raises(NotFound, match=r"^draft: no draft model is beside .*\.gguf; auto is hf:org/draft, downloaded once"):
        DFlash().load(model)
    assert dflash.DDTree().drafter == DFlash()


def test_a_draft_beside_the_file_comes_first(tmp_path):
    target = tmp_path / "Qwen3.6-27B-Q4_K_M.gguf"
    others = "Qwen3.5-27B-DFlash-Q8_0.gguf", "Qwen3.6-27B-eagle3.gguf", "Qwen3.6-27B-Q8_0.gguf"
    for name in (target.name, *others):
        (tmp_path / name).touch()
    assert draft_of({}, target) == PUBLISHED["qwen3.6-27b"]
    beside = tmp_path / "Qwen3.6-27B-DFlash-Q8_0.gguf"
    beside.touch()
    assert draft_of({}, target) == str(beside)


def test_a_draft_of_the_repository_comes_first(tmp_path):
    files = {"Model-Q4_K_M.gguf": b"weights", "dflash-draft-Q8_0.gguf": b"draft", "Model-eagle3.gguf": b"another"}
    with serve_hub() as hub:
        find = partial(resolve, endpoint=hub.url, cache_dir=tmp_path)
        hub.repos["org/Model-GGUF"] = dict(files)
        hub.repos["org/Other-GGUF"] = {"Qwen3.5-4B-Q4_K_M.gguf": b"weights"}
        name = draft_of({}, find("hf:org/Model-GGUF"))
        assert find(name, folders=True).read_bytes() == b"draft"
        assert draft_of({}, find("hf:org/Other-GGUF")) == PUBLISHED["qwen3.5-4b"]


def test_the_users_table_comes_before_ours(tmp_path, monkeypatch):
    table = tmp_path / "drafts.json"
    monkeypatch.setenv(OWN_TABLE, str(table))
    table.write_text(json.dumps({"Qwen3.6-27B": "mine.gguf", "my-model": "hf:me/draft"}))
    assert draft_of({"general.name": "Qwen3.6-27B"}, tmp_path / "x.gguf") == "mine.gguf"
    assert draft_of({"general.name": "My Model"}, tmp_path / "x.gguf") == "hf:me/draft"
    table.write_text(json.dumps({"qwen3.6": "short.gguf"}))
    assert draft_of({"general.name": "Qwen3.6-27B"}, tmp_path / "x.gguf") == "short.gguf"
    table.write_text("[1]")
    with pytest.raises(RequestError, match=f"{OWN_TABLE}: .*drafts.json must hold a JSON object"):
        draft_of({}, tmp_path / "x.gguf")
    table.unlink()
    with pytest.raises(RequestError, match="can't be read"):
        draft_of({}, tmp_path / "x.gguf")
