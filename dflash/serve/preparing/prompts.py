"""Text and token ids of a request's prompts."""

import json
from collections.abc import Mapping
from typing import Any

from dflash.errors import ContextOverflow
from dflash.generation.chat_prompt import chat_text
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.preparing.deferred_tools import top_tools, write_references
from dflash.serve.requests import ChatRequest, CompletionRequest

BROKEN = "arguments"
"""Name of the parameter that holds arguments of a past call which are no JSON object."""


def prompt_ids(
    request: ChatRequest | CompletionRequest, tokenizer: Tokenizer, template: ChatTemplate | None, context: int
) -> list[list[int]]:
    """Render and tokenize the prompts of a request.

    Returns
    -------
    list of list of int
        One for a chat request.

    Raises
    ------
    TemplateError
        If there is no template, or it refuses the messages.
    ContextOverflow
        If a prompt is too long.
    """
    if isinstance(request, CompletionRequest):
        return [_encoded(prompt, tokenizer, context) for prompt in request.prompts]
    return [tokenizer.encode(prompt_text(request, template), max_tokens=context)]


def prompt_text(request: ChatRequest, template: ChatTemplate | None) -> str:
    """Render the prompt of a chat request.

    Raises
    ------
    TemplateError
        If there is no template, or it refuses the messages.

    Notes
    -----
    A past call whose arguments are no JSON object, since the output was cut or the model made a mistake, is shown to the
    model with the text as written in one parameter, `BROKEN`. Chat templates refuse such calls otherwise.
    """
    messages = [_with_objects(message) for message in write_references(request.messages, request.tools)]
    return chat_text(template, messages, tools=top_tools(request.tools), settings=request.template_kwargs)


def _encoded(prompt: str | list[int], tokenizer: Tokenizer, context: int) -> list[int]:
    ids = tokenizer.encode(prompt, max_tokens=context) if isinstance(prompt, str) else prompt
    if len(ids) > context:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens, the context holds {context}", n_tokens=len(ids), context=context
        )
    return ids


def _with_objects(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message whose calls all have arguments that a template can iterate over."""
    calls = message.get("tool_calls")
    if not calls or not any(_is_broken(_arguments(call)) for call in calls):
        return message
    return {**message, "tool_calls": [_mended(call) for call in calls]}


def _mended(call: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = _arguments(call)
    if not _is_broken(arguments):
        return call
    return {**call, "function": {**call["function"], "arguments": {} if arguments is None else {BROKEN: arguments}}}


def _arguments(call: Mapping[str, Any]) -> str | Mapping[str, Any] | None:
    return call["function"].get("arguments")


def _is_broken(arguments: str | Mapping[str, Any] | None) -> bool:
    if not isinstance(arguments, str):
        return arguments is None
    if not arguments.strip():
        return False
    try:
        return not isinstance(json.loads(arguments, parse_int=float), dict)
    except (ValueError, RecursionError):
        return True
