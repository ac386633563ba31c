"""OpenAI's chat completions and completions as dialects of the server."""

from collections.abc import Mapping
from dataclasses import replace

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.generation.messages.fields import Fields, shown
from dflash.serve.dialect import AnswerHead
from dflash.serve.limits import MAX_CHOICES, MAX_SEQUENCES
from dflash.serve.openai.chat_format import ChatFormat
from dflash.serve.openai.chat_request import parse_chat
from dflash.serve.openai.completion_format import CompletionFormat
from dflash.serve.openai.errors import OpenAIErrors
from dflash.serve.openai.step_records import ChatSteps, CompletionSteps
from dflash.serve.parsing.constraints import parse_grammar
from dflash.serve.parsing.options import parse_options
from dflash.serve.request_fields.row import COMPLETIONS
from dflash.serve.request_fields.table import known_fields, read
from dflash.serve.requests import ChatRequest, CompletionRequest

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of a completion request that gives none, as in OpenAI's API."""


def parse_completion(body: object) -> CompletionRequest:
    """Read a completion body."""
    fields = known_fields(body, COMPLETIONS)
    n = read(fields, COMPLETIONS, "n")
    if fields.integer("best_of", 1, MAX_CHOICES, n) != n:
        raise fields.error("best_of", f"must equal n ({n}): choices are not ranked")
    reads_only = fields.any("echo") or fields.any("prompt_logprobs") is not None
    max_tokens = fields.integer("max_tokens", 0 if reads_only else 1, MAX_TOKENS, DEFAULT_COMPLETION_TOKENS)
    prompts = _prompts(fields)
    if n * len(prompts) > MAX_SEQUENCES:
        raise fields.error(
            "n", f"{n} choices of {len(prompts)} prompts are {n * len(prompts)}, at most {MAX_SEQUENCES} are allowed"
        )
    options = parse_options(fields, COMPLETIONS, max_tokens, logprobs=read(fields, COMPLETIONS, "logprobs"))
    echo = read(fields, COMPLETIONS, "echo")
    if echo and options.logprobs is not None and options.prompt_logprobs is None:
        options = replace(options, prompt_logprobs=options.logprobs)
    add_special = read(fields, COMPLETIONS, "add_special_tokens")
    return CompletionRequest(options, prompts, parse_grammar(fields), echo, add_special)


def _prompts(fields: Fields) -> tuple[str | list[int], ...]:
    prompt = fields.any("prompt", required=True)
    if isinstance(prompt, str):
        return (prompt,)
    if isinstance(prompt, list) and prompt:
        if _are_ids(prompt):
            return (prompt,)
        if len(prompt) > MAX_CHOICES:
            raise fields.error("prompt", f"holds {len(prompt)} prompts, at most {MAX_CHOICES} are allowed")
        if all(isinstance(part, str) or _are_ids(part) for part in prompt):
            return tuple(prompt)
    raise fields.error("prompt", f"must be a string, an array of token ids, or an array of those, got {shown(prompt)}")


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int and 0 <= item < 2**31 for item in value)


class ChatCompletions(OpenAIErrors):
    """``/v1/chat/completions``."""

    def parse(self, body: object, headers: Mapping[str, str]) -> ChatRequest:  # noqa: ARG002
        """Read the body of a request; see `parse_chat`."""
        return parse_chat(body)

    def format(self, request: ChatRequest, head: AnswerHead) -> ChatFormat:
        """Return the format of the response."""
        return (ChatSteps if request.options.steps else ChatFormat)(request, head)


class Completions(OpenAIErrors):
    """``/v1/completions``."""

    prompt_field = "prompt"

    def parse(self, body: object, headers: Mapping[str, str]) -> CompletionRequest:  # noqa: ARG002
        """Read the body of a request; see `parse_completion`."""
        return parse_completion(body)

    def format(self, request: CompletionRequest, head: AnswerHead) -> CompletionFormat:
        """Return the format of the response."""
        return (CompletionSteps if request.options.steps else CompletionFormat)(request, head)
