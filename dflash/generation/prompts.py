"""Forms of a prompt, and their conversion to token ids."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias

from dflash.decode.sampling.params import check_whole
from dflash.errors import RequestError, TemplateError
from dflash.generation.messages.chat_message import chat_messages
from dflash.generation.messages.chat_prompt import PromptEnding, can_continue, chat_ids
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer

Messages: TypeAlias = Sequence[JsonMapping]
Prompt: TypeAlias = str | Sequence[int] | Messages
"""Text to continue, ids to continue, or messages for the chat template."""

_FORMS = "must be a text, a list of messages, a list of token ids, or a list of those"


def split(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """Split an argument into single prompts."""
    if isinstance(prompt, str):
        return [prompt], False
    parts = _parts(prompt)
    return ([parts], False) if isinstance(parts[0], Mapping | Integral) else (parts, True)


def is_messages(prompt: Prompt) -> bool:
    """Return True for messages, False for text and token ids."""
    return isinstance(prompt, list | tuple) and all(isinstance(part, Mapping) for part in prompt)


def encode(
    prompt: Prompt,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    *,
    tools: Sequence[JsonMapping] | None = None,
    settings: Mapping[str, Any] | None = None,
    continue_final_message: bool = False,
    max_tokens: int | None = None,
) -> list[int]:
    """Convert one prompt to token ids; messages may take `max_tokens`."""
    parts = [] if isinstance(prompt, str) else _parts(prompt)
    if parts and is_messages(parts):
        if template is None:
            raise TemplateError("the model has no chat template: pass a text instead of messages")
        messages = chat_messages(parts)
        if continue_final_message and not can_continue(messages[-1]):
            raise RequestError("continue_final_message: needs a last message of the assistant with text and no tool calls")
        if settings and "tools" in settings:
            raise RequestError("chat_template_kwargs: tools are no setting of the template; pass them as tools")
        ending = PromptEnding.CONTINUED if continue_final_message else PromptEnding.NEW_TURN
        return chat_ids(
            tokenizer, template, messages, tools=tools or (), settings=settings, ending=ending, max_tokens=max_tokens
        )
    if continue_final_message:
        raise RequestError("continue_final_message: needs messages; a text is always continued")
    if tools or settings:
        name = "tools" if tools else "template settings"
        raise RequestError(f"{name} need the chat template: pass messages instead of a text")
    if isinstance(prompt, str):
        return tokenizer.encode(prompt)
    if all(isinstance(part, Integral) for part in parts):
        return [int(part) for part in parts]
    raise RequestError(f"prompt: {_FORMS}, got {prompt!r:.80}")


def checked_stop_ids(ids: Sequence[int], n_vocab: int) -> tuple[int, ...]:
    """Return the argument `stop_token_ids`."""
    found = tuple(ids) if isinstance(ids, Sequence) and not isinstance(ids, str) else (ids,)
    for token in found:
        check_whole("stop_token_ids: a token id", token, 0, n_vocab - 1)
    return tuple(map(int, found))


def _parts(prompt: Sequence[Any]) -> list[Any]:
    if isinstance(prompt, Mapping):
        raise RequestError("prompt: is a single message; pass a list of messages")
    if hasattr(prompt, "prompt"):
        raise RequestError("prompt: is a case of load_prompts; pass case.prompt, or cases to dflash.compare")
    try:
        parts = list(prompt)
    except TypeError:
        raise RequestError(f"prompt: {_FORMS}, got {prompt!r:.80}") from None
    if not parts:
        raise RequestError(f"prompt: is empty; {_FORMS}")
    return parts
