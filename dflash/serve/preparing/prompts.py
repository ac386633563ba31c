"""Text and token ids of a request's prompts."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from dflash.errors import ContextOverflow
from dflash.generation.messages.chat_prompt import chat_text
from dflash.json_types import JsonMapping
from dflash.model.text.chat_template import ChatTemplate
from dflash.model.text.tokenizer import Tokenizer
from dflash.serve.requests import ChatRequest, CompletionRequest, Options


def prompt_ids(
    request: ChatRequest | CompletionRequest,
    tokenizer: Tokenizer,
    template: ChatTemplate | None,
    context: int,
    longest: int | None = None,
) -> list[list[int]]:
    """Render, tokenize and shorten the prompts of a request.

    longest: most tokens of a prompt that is shortened, before that; `context` by default.
    """
    options = request.options
    most = context if options.truncation is None or longest is None else longest
    if isinstance(request, CompletionRequest):
        found = [_encoded(prompt, tokenizer, most, add_special=request.add_special) for prompt in request.prompts]
    elif request.drop_oldest:
        found = [_without_oldest(request, tokenizer, template, context)]
    else:
        found = [tokenizer.encode(prompt_text(request, template), marked=True, max_tokens=most)]
    return [_shortened(ids, options, context) for ids in found]


def prompt_text(request: ChatRequest, template: ChatTemplate | None) -> str:
    """Render the prompt of a chat request, see `chat_text`."""
    settings = request.template_kwargs
    return chat_text(template, request.messages, tools=request.tools, settings=settings, ending=request.ending)


def _encoded(prompt: str | list[int], tokenizer: Tokenizer, most: int, *, add_special: bool) -> list[int]:
    if isinstance(prompt, str):
        ids = tokenizer.encode(prompt, max_tokens=most)
        return ids if add_special else tokenizer.without_added_bos(ids, prompt)
    if len(prompt) > most:
        raise ContextOverflow(
            f"the prompt has {len(prompt)} tokens, the context holds {most}", n_tokens=len(prompt), context=most
        )
    return prompt


def _shortened(ids: list[int], options: Options, context: int) -> list[int]:
    """Return the part of a prompt that `Options.truncation` keeps; it leaves room for the output in the context."""
    if options.truncation is None:
        return ids
    n_output = 1 if options.max_tokens is None else options.max_tokens
    room = max(context - n_output, 1)
    n = room if options.truncation.n_tokens is None else min(options.truncation.n_tokens, room)
    return (ids[-n:] if options.truncation.keep_end else ids[:n]) if len(ids) > n else ids


def _without_oldest(request: ChatRequest, tokenizer: Tokenizer, template: ChatTemplate | None, context: int) -> list[int]:
    """Tokenize a conversation without the fewest of its oldest turns with which it leaves room for a token."""
    rest = _without_turns(request.messages)

    def encoded(n: int) -> list[int] | None:
        """Return the ids without the first `n` turns; None if they are too long."""
        try:
            text = prompt_text(replace(request, messages=tuple(rest[n])), template)
            return tokenizer.encode(text, marked=True, max_tokens=context - 1)
        except ContextOverflow:
            if n == len(rest) - 1:
                raise
            return None

    whole = encoded(0)
    if whole is not None:
        return whole
    n = bisect_left(range(1, len(rest) - 1), 1, key=lambda n: encoded(n) is not None) + 1
    ids = encoded(min(n, len(rest) - 1))
    assert ids is not None, "the last one is returned or refused"
    return ids


def _without_turns(messages: Sequence[JsonMapping]) -> list[Sequence[JsonMapping]]:
    """Return the messages without none, the first, the first two ... turns. A turn begins with a message of the user."""
    n_system = next((i for i, each in enumerate(messages) if each.get("role") not in ("system", "developer")), len(messages))
    starts = [i for i in range(n_system + 1, len(messages)) if messages[i].get("role") == "user"]
    return [messages, *([*messages[:n_system], *messages[start:]] for start in starts)]
