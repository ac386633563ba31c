"""Strategies that a model can't run by itself."""

import json

from golden import path_of

import dflash.decode.drafters  # noqa: F401  registers the names
from dflash.decode.drafters.missing_files import NO_DRAFT, NO_LAYER, known_draft, strategies_without_files
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.loading.published_drafts import OWN_TABLE

BLOCK_DRAFTS = ("dflash", "dspark", "ddtree")


def test_the_demo_lacks_a_small_model_only():
    with GGUFFile.open(resolve("demo")) as file:
        assert known_draft(file) == "demo-draft"
        assert set(strategies_without_files(file)) == {"draft-model", "eagle3", "eagle3-tree"}


def test_a_model_without_drafts(monkeypatch, tmp_path):
    with GGUFFile.open(path_of("llama-tiny-Q8_0")) as file:
        missing = strategies_without_files(file)
        assert [missing[word] for word in BLOCK_DRAFTS] == [NO_DRAFT] * 3
        assert missing["mtp"] == missing["mtp-tree"] == NO_LAYER
        assert not {"plain", "lookup", "adaptive", "first"} & set(missing)
        table = tmp_path / "drafts.json"
        table.write_text(json.dumps({"llama-tiny": "hf:me/draft"}))
        monkeypatch.setenv(OWN_TABLE, str(table))
        assert (known_draft(file), known_draft(file, at_hand=True)) == ("hf:me/draft", None)
        assert set(BLOCK_DRAFTS) < set(strategies_without_files(file)), "nothing is downloaded for a name"
        table.write_text(json.dumps({"llama-tiny": "draft.gguf"}))
        assert known_draft(file, at_hand=True) == "draft.gguf"
        assert not set(BLOCK_DRAFTS) & set(strategies_without_files(file))
