"""Metadata of the wrong kind, an array for a scalar or the other way round, is refused by an error that names the key."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dflash.errors import FormatError, ModelError
from dflash.model.describe import overview
from dflash.model.draft.files import open_draft as files
from dflash.model.draft.files.source import Source
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.draft_model import _check
from dflash.model.loading.mtp import _refuse_draft
from dflash.model.loading.target import _template
from dflash.model.text.tokenizer import Tokenizer

GOLDEN = Path(__file__).parent.parent / "data" / "golden"
FILES = [GOLDEN / name / f"{name}-Q4_0.gguf" for name in ("qwen35-r2-untied", "qwen3-dense")]
KINDS = {
    "text": "text",
    "empty": "",
    "integer": 3,
    "negative": -1,
    "number": 0.5,
    "nan": float("nan"),
    "flag": True,
    "texts": ["text", "text"],
    "no texts": [],
    "integers": np.array([1, 2], np.int32),
    "one integer": np.array([1], np.uint64),
    "no integers": np.empty(0, np.int32),
    "numbers": np.array([0.5, np.inf], np.float32),
    "flags": np.array([True, False]),
}
TEXTS = ["general.architecture", "general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"]


def changed(file, **metadata):
    """The same file with other metadata, for functions that read only metadata."""
    return SimpleNamespace(
        metadata=dict(file.metadata) | metadata, tensors=file.tensors, path=file.path, parts=file.parts, close=lambda: None
    )


def read(file):
    """Read everything that loading and `info` read from metadata."""
    overview(file)
    tokenizer = Tokenizer.from_gguf(file.metadata)
    _template(file, tokenizer, tokenizer.spelled_tokens())


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_with_every_kind_of_value(path):
    with GGUFFile.open(path) as file:
        read(file)
        keys = [*file.metadata, "tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", "general.name"]
        for key in keys:
            for kind, value in KINDS.items():
                try:
                    read(changed(file, **{key: value}))
                except ModelError:
                    continue
                except Exception as error:
                    pytest.fail(f"{key} as {kind}: {error!r}")


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"text", "empty"}])
def test_a_text_of_another_kind_is_named(key, kind):
    with GGUFFile.open(FILES[0]) as file, pytest.raises(FormatError, match=key):
        read(changed(file, **{key: KINDS[kind]}))


@pytest.mark.parametrize("kind", ["text", "integer", "number", "texts", "integers", "flags"])
def test_a_flag_of_another_kind_is_named(kind):
    with GGUFFile.open(FILES[0]) as file, pytest.raises(FormatError, match=r"tokenizer\.ggml\.add_bos_token"):
        read(changed(file, **{"tokenizer.ggml.add_bos_token": KINDS[kind]}))


@pytest.mark.parametrize("kind", ["texts", "integers"])
def test_an_architecture_that_is_an_array(monkeypatch, kind):
    """Functions that read the architecture before there is a configuration."""
    with GGUFFile.open(FILES[0]) as file:
        wrong = changed(file, **{"general.architecture": KINDS[kind]})
        opened = type("Opened", (), {"__enter__": lambda _: wrong, "__exit__": lambda *_: None})()
        monkeypatch.setattr(files.GGUFFile, "open", lambda _: opened)
        for reader in (
            lambda: files.is_draft(Path("x.gguf")),
            lambda: Source.of_gguf(wrong),
            lambda: _refuse_draft(wrong, "x"),
        ):
            with pytest.raises(FormatError, match=r"'general\.architecture' is "):
                reader()


def test_a_draft_model_whose_tokens_are_numbers():
    tokens = np.array([1, 2], np.int32)
    large = SimpleNamespace(metadata={"tokenizer.ggml.tokens": ["a", "b"]}, n_vocab=2)
    with pytest.raises(ModelError, match="x: has another vocabulary"):
        _check(large, SimpleNamespace(n_vocab=2), tokens, "x")
