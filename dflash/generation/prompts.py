"""What a caller may hand over as a prompt, and the ids it stands for."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from dflash.errors import RequestError, TemplateError
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

Messages: TypeAlias = Sequence[Mapping[str, Any]]
Prompt: TypeAlias = str | Sequence[int] | Messages
"""Text to continue, ids to continue, or messages for the chat template."""

_WANTED = "wanted a text, a list of messages, a list of token ids, or a list of those"


def split(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """Tell one prompt from several.

    Returns
    -------
    list of Prompt, bool
        The prompts, and whether the caller gave a list of them.

    Raises
    ------
    RequestError
        If it is neither a prompt nor a list of prompts.
    """
    if isinstance(prompt, str):
        return [prompt], False
    parts = _parts(prompt)
    return ([parts], False) if isinstance(parts[0], Mapping | Integral) else (parts, True)


def encode(
    prompt: Prompt,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[int]:
    """Turn one prompt into ids.

    Parameters
    ----------
    prompt : str, sequence of int or sequence of mapping
        Text is continued as it is, messages go through the template.
    tokenizer : Tokenizer
        The model's.
    template : ChatTemplate or None
        The model's, if it has one.
    tools : sequence of mapping, optional
        Shown to the model by the template.
    settings : mapping, optional
        Of the template, as ``{"enable_thinking": False}``.

    Raises
    ------
    RequestError
        If the prompt is of another kind, or tools or settings come without messages.
    TemplateError
        If there is no template, or it refuses the messages.
    """
    parts = [] if isinstance(prompt, str) else _parts(prompt)
    if parts and all(isinstance(part, Mapping) for part in parts):
        if template is None:
            raise TemplateError("the model has no chat template: give a text instead of messages")
        text = template.render(parts, tools=tools or None, **(settings or {}))
        return tokenizer.encode(text)
    if tools or settings:
        name = "tools" if tools else "template settings"
        raise RequestError(f"{name} go through the chat template: give messages instead of a text")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if all(isinstance(part, Integral) for part in parts):
        return [int(part) for part in parts]
    raise RequestError(f"prompt: {_WANTED}, got {prompt!r:.80}")


def _parts(prompt: Sequence[Any]) -> list[Any]:
    if isinstance(prompt, Mapping):
        raise RequestError("prompt is one message: put it in a list")
    try:
        parts = list(prompt)
    except TypeError:
        raise RequestError(f"prompt: {_WANTED}, got {prompt!r:.80}") from None
    if not parts:
        raise RequestError(f"prompt is empty: {_WANTED}")
    return parts
