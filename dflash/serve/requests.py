"""Requests of all APIs in one form, which the server runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash.decode.sampling.params import Sampling
from dflash.generation.grammar.params import GrammarParams
from dflash.serve.strategy_choice import UNSAID, Decoding


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of a request. Sampling is greedy unless the request sets parameters.

    Parameters
    ----------
    model : str or None
        Name of the model in the request.
    sampling : Sampling
        Sampling parameters.
    n : int
        Choices of each prompt.
    max_tokens : int, optional
        Maximum output tokens; more than the context has left counts as None, the rest of the context.
    stop : tuple of str
        Stop strings.
    stream : bool
        Send events instead of one body.
    include_usage : bool
        Send token counts at the end of a stream, where the API makes that optional.
    logprobs : int, optional
        Number of likeliest tokens to report at each position.
    decoding : Decoding
        Strategy and recoveries.
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


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request of any chat API.

    Parameters
    ----------
    options : Options
        Settings.
    messages : tuple of mapping
        Messages in OpenAI's chat format, as the chat template takes them. Content is a string, None or a list of parts:
        ``{"type": "text", "text": ...}``, and ``{"type": "tool_reference", "tool_name": ...}`` in results of tools.
    tools : tuple of mapping
        Functions in OpenAI's chat format. Those with ``"defer_loading": true`` are written into the prompt where a
        ``tool_reference`` names them, instead of at its beginning.
    grammar : GrammarParams
        Constraints on the output, ``tool_choice`` included.
    template_kwargs : mapping, optional
        Variables of the chat template.
    parallel_tool_calls : bool
        False ends the output after its first tool call.
    steps : bool
        Describe the steps of the engine in a stream, where the API can.
    """

    options: Options
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    grammar: GrammarParams = field(default_factory=GrammarParams)
    template_kwargs: Mapping[str, Any] | None = None
    parallel_tool_calls: bool = True
    steps: bool = False


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request to continue prompts, which are texts or token ids."""

    options: Options
    prompts: tuple[str | list[int], ...]
    grammar: GrammarParams = field(default_factory=GrammarParams)
    echo: bool = False
