"""Contents of error responses: what clients see, and what stays in the log."""

import errno
import json
import os

import pytest

from dflash.errors import (
    DFlashError,
    FormatError,
    KernelError,
    ModelError,
    NotFound,
    OutOfMemory,
    RequestError,
    TemplateError,
    public_message,
)
from dflash.generation.messages.fields import FieldError
from dflash.model.draft.files.open_draft import open_draft
from dflash.model.gguf.file import GGUFFile
from dflash.model.loading.hub import resolve
from dflash.model.text.chat_template import ChatTemplate
from dflash.serve.http_errors import INTERNAL, MAX_MESSAGE, problem_of


def wrapped(error, prefix=""):
    """Return the response to an error of a strategy."""
    try:
        try:
            raise error
        except DFlashError as cause:
            raise FieldError("strategy", prefix + str(cause)) from cause
    except FieldError as field_error:
        return field_error


@pytest.mark.parametrize("kind", [ModelError, NotFound, FormatError, RequestError, KernelError])
def test_a_path_comes_before_the_message(kind, tmp_path):
    error = kind("is no model", path=tmp_path / "x.gguf")
    assert str(error) == f"{tmp_path}/x.gguf: is no model"
    assert public_message(error) == "x.gguf: is no model"
    assert str(kind("is no model")) == "is no model"


def test_wrapping_an_error_does_not_bring_its_folders_back(tmp_path):
    error = wrapped(FormatError("is no safetensors file", path=tmp_path / "model.safetensors"), "the draft: ")
    assert str(tmp_path) in str(error)
    problem = problem_of(error)
    assert problem.status == 400
    assert problem.message == "strategy: the draft: model.safetensors: is no safetensors file"


def test_other_files_of_the_same_folder_are_shortened(tmp_path):
    error = FormatError(f"wants {tmp_path}/b.gguf beside it", path=tmp_path / "a.gguf")
    assert public_message(error) == "a.gguf: wants b.gguf beside it"


def test_paths_of_the_system_are_shortened(tmp_path):
    try:
        try:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(tmp_path / "draft"))
        except OSError as cause:
            raise RequestError(f"draft: {cause}") from cause
    except RequestError as error:
        assert public_message(error) == "draft: [Errno 13] Permission denied: 'draft'"


def test_names_of_the_hub_stay():
    assert public_message(NotFound("no such file", path="hf:org/repo:q4")) == "hf:org/repo:q4: no such file"


def broken_files(folder):
    (folder / "cut.gguf").write_bytes(b"GGUF\3")
    (folder / "draft").mkdir()
    (folder / "draft" / "config.json").write_text("{}")
    (folder / "draft" / "model.safetensors").write_bytes(b"\xff" * 100)
    (folder / "bad").mkdir()
    (folder / "bad" / "config.json").write_bytes(b"\xff")
    (folder / "bad" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "dir").mkdir()
    (folder / "dir" / "config.json").mkdir()
    (folder / "dir" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    yield lambda: GGUFFile.open(folder / "cut.gguf")
    yield lambda: GGUFFile.open(folder / "none.gguf")
    yield lambda: GGUFFile.open(folder / "part-00001-of-00002.gguf")
    yield lambda: GGUFFile.open(folder)
    yield lambda: open_draft(folder / "draft")
    yield lambda: open_draft(folder / "bad")
    yield lambda: open_draft(folder / "dir")
    yield lambda: resolve(folder / "none.gguf")


def test_no_error_of_a_file_tells_a_client_its_folder(tmp_path):
    secret = tmp_path / "secret"
    secret.mkdir()
    for attempt in broken_files(secret):
        with pytest.raises(ModelError) as raised:
            attempt()
        message = problem_of(wrapped(raised.value)).message
        assert str(tmp_path) not in message, message
        assert str(raised.value).split(": ")[-1] in message


def test_a_name_that_no_file_can_have(tmp_path):
    with pytest.raises(NotFound, match="File name too long"):
        resolve(str(tmp_path / ("x" * 5000)))


@pytest.mark.parametrize(
    "error", [KernelError("delta: x is 3"), OutOfMemory("/a/b"), DFlashError("/a/b"), FormatError("/a")]
)
def test_what_goes_wrong_inside_is_only_logged(error, caplog):
    problem = problem_of(error)
    assert (problem.status, problem.message) == (500, INTERNAL)
    assert str(error) in caplog.text


def test_long_messages_are_cut():
    message = problem_of(RequestError(f"strategy: {'x' * 100_000!r} is not known")).message
    assert len(message) == MAX_MESSAGE
    assert message.endswith("...")


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"documents": 5}, "chat_template_kwargs.documents"),
        ({"documents": "text"}, "chat_template_kwargs.documents"),
        ({"documents": {"a": 1}}, "chat_template_kwargs.documents"),
        ({"documents": [5]}, "chat_template_kwargs.documents"),
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools"),
    ],
)
def test_what_a_template_can_not_take_is_named(settings, param):
    template = ChatTemplate("{{ messages[0].content }}", tokens={})
    with pytest.raises(TemplateError) as raised:
        template.render([{"role": "user", "content": "hi"}], **settings)
    problem = problem_of(raised.value)
    assert (problem.status, problem.param) == (400, param)
    assert next(iter(settings)) in problem.message
    assert len(json.dumps(problem.body())) < 300
