"""A chat template of the user's own, in place of that in the model's file."""

import os
from pathlib import Path

from dflash.errors import NotFound, RequestError, TemplateError
from dflash.model.text.chat_template import MAX_SOURCE, ChatTemplate
from dflash.model.text.spelled_tokens import SpelledTokens
from dflash.model.text.tokenizer import Tokenizer


def own_template(given: str | os.PathLike[str], tokenizer: Tokenizer, spelled: SpelledTokens | None = None) -> ChatTemplate:
    """Return the chat template that a text or a file holds, once it has rendered messages.

    given: Jinja source, or the path of a file with it. A text without braces is the path of a file, too.
    """
    source = given if isinstance(given, str) and "{" in given else _read(Path(given))
    template = ChatTemplate(source, tokens=tokenizer.special_texts(), spelled=spelled)
    probe = "probe of a message"
    try:
        text = template.render([{"role": "user", "content": probe}])
    except TemplateError as error:
        raise RequestError(f"chat_template: {error}") from error
    if probe not in text:
        raise RequestError("chat_template: leaves out the text of a message of the user; it must use messages and content")
    return template


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(4 * MAX_SOURCE + 1)
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise NotFound(f"chat template {os.fspath(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RequestError(f"chat_template: {os.fspath(path)!r} is no text in UTF-8: {error.reason}") from error
