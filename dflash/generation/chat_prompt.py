"""Conversion of chat messages to token ids."""

from collections.abc import Mapping, Sequence
from typing import Any

from dflash.errors import TemplateError
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.model.text.written_numbers import with_written_numbers

Message = Mapping[str, Any]


def chat_ids(
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
    max_tokens: int,
) -> list[int]:
    """Render messages with `chat_text` and tokenize the result, which may have `max_tokens` tokens.

    Raises
    ------
    TemplateError
        If there is no template, or it refuses the messages.
    ContextOverflow
        If the prompt is longer than `max_tokens`.
    """
    return tokenizer.encode(chat_text(template, messages, tools=tools, settings=settings), max_tokens=max_tokens)


def chat_text(
    template: ChatTemplate | None,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] = (),
    settings: Mapping[str, Any] | None = None,
) -> str:
    """Render messages with the chat template.

    Raises
    ------
    TemplateError
        If there is no template, or it refuses the messages.

    Notes
    -----
    The role ``developer`` is OpenAI's newer name of ``system`` and is rendered as ``system`` if the template does not know
    it. If a template refuses system messages after the start, they are rendered as user messages that hold a
    ``<system-reminder>`` block. Agents use the same form when a server refuses such a message.
    """
    if template is None:
        raise TemplateError("the model has no chat template: use /v1/completions")
    renamed = messages if "developer" in template.source else [_as_system(message) for message in messages]
    if "<function=" in template.source:
        renamed = [with_written_numbers(message) for message in renamed]
    variables = dict(settings or {})
    try:
        return template.render(renamed, tools=tools or None, **variables)
    except TemplateError:
        moved = _only_first_system(renamed)
        if moved is None:
            raise
        return template.render(moved, tools=tools or None, **variables)


def _as_system(message: Message) -> Message:
    return {**message, "role": "system"} if message.get("role") == "developer" else message


def _only_first_system(messages: Sequence[Message]) -> list[Message] | None:
    """Join the leading system messages and convert later ones to user messages; None if nothing would change."""
    n = next((i for i, message in enumerate(messages) if message.get("role") != "system"), len(messages))
    late = [i for i in range(n, len(messages)) if messages[i].get("role") == "system"]
    if n < 2 and not late:
        return None
    first: list[Message] = [{"role": "system", "content": "\n\n".join(map(_text, messages[:n]))}] if n else []
    rest = [_reminder(message) if message.get("role") == "system" else message for message in messages[n:]]
    return first + rest


def _reminder(message: Message) -> Message:
    return {"role": "user", "content": f"<system-reminder>\n{_text(message)}\n</system-reminder>"}


def _text(message: Message) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)
