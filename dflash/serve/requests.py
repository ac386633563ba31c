"""Requests of all APIs in one form, which the server runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dflash.decode.sampling.params import Sampling
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.messages.chat_prompt import PromptEnding
from dflash.json_types import JsonMapping
from dflash.serve.strategy_choice import UNSAID, Decoding


class Truncation(NamedTuple):
    """Tokens to which a prompt is shortened.

    n_tokens: most tokens; None for all that leave room for the output in the context.
    """

    n_tokens: int | None
    keep_end: bool = True


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a request. Sampling is greedy unless the request sets parameters.

    max_tokens: maximum output tokens; more than the context has left counts as None, the rest of the context.
    include_usage: send token counts at the end of a stream, where the API makes that optional.
    truncation: how to shorten prompts; None refuses those beyond the context.
    cache_salt: text that separates the prefix cache from that of requests with another one.
    use_prefix_cache: begin with a prefix from the prefix cache, if it holds one.
    prompt_logprobs: number of likeliest tokens to report at each position of the prompt.
    continuous_usage: send token counts with every event of a stream, where the API can.
    tokens_as_ids: write tokens of log-probabilities as ``token_id:5``.
    steps: describe the steps of the engine in a stream, where the API can.
    step_tokens: describe the tokens and the draft of each of these steps.
    """

    model: str | None
    sampling: Sampling
    n: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    logprobs: int | None = None
    decoding: Decoding = UNSAID
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    skip_special: bool = True
    truncation: Truncation | None = None
    cache_salt: str | None = None
    use_prefix_cache: bool = True
    prompt_logprobs: int | None = None
    priority: int = 0
    include_reasoning: bool = True
    continuous_usage: bool = False
    token_ids: bool = False
    tokens_as_ids: bool = False
    steps: bool = False
    step_tokens: bool = False


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of any chat API.

    messages: messages in OpenAI's chat format, as the chat template takes them. Content is a string, None or a list of
        parts: ``{"type": "text", "text": ...}``, and ``{"type": "tool_reference", "tool_name": ...}`` in results of tools.
    tools: functions in OpenAI's chat format. Those with ``"defer_loading": true`` are written into the prompt where a
        ``tool_reference`` names them, instead of at its beginning.
    parallel_tool_calls: false ends the output after its first tool call.
    echo_message: send the message that is continued before the output.
    drop_oldest: drop the oldest turns of a conversation that is longer than the context.
    """

    options: Options
    messages: tuple[JsonMapping, ...]
    tools: tuple[JsonMapping, ...] = ()
    grammar: GrammarParams = field(default_factory=GrammarParams)
    template_kwargs: Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    ending: PromptEnding = PromptEnding.NEW_TURN
    echo_message: bool = False
    drop_oldest: bool = False


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request to continue prompts, which are texts or token ids.

    add_special: begin texts with the token that the tokenizer adds, if it does.
    """

    options: Options
    prompts: tuple[str | list[int], ...]
    grammar: GrammarParams = field(default_factory=GrammarParams)
    echo: bool = False
    add_special: bool = True
