"""Bodies of OpenAI's chat completions and completions, parsed into frozen dataclasses."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.decode.sampling.params import Sampling
from dflash.errors import RequestError
from dflash.serve.limits import MAX_BIASES, MAX_CHOICES, MAX_SEQUENCES, MAX_STOP_LENGTH, MAX_STOPS
from dflash.serve.parsing.fields import Fields, shown
from dflash.serve.parsing.unsupported import refuse_unsupported
from dflash.serve.strategy_choice import UNSAID, Decoding, parse_decoding

MAX_LOGPROBS = 20
"""Top tokens per position, as in OpenAI's API."""

DEFAULT_COMPLETION_TOKENS = 16
"""`max_tokens` of a completion request that gives none, as in OpenAI's API."""


@dataclass(frozen=True, slots=True)
class Options:
    """Fields that chat and completion requests share. Sampling is greedy unless the request sets parameters."""

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
    """A body of ``/v1/chat/completions``; messages and tools are the client's objects, unchanged."""

    options: Options
    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] | None = None
    template_kwargs: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A body of ``/v1/completions``; a prompt is text or token ids."""

    options: Options
    prompts: tuple[str | list[int], ...]
    echo: bool = False


def parse_chat(body: object) -> ChatRequest:
    """Read a chat body.

    Parameters
    ----------
    body : object
        What the JSON held.

    Returns
    -------
    ChatRequest

    Raises
    ------
    FieldError
        If a field is missing, of the wrong kind or out of range.
    """
    fields = Fields(body)
    refuse_unsupported(fields)
    messages = list(fields.objects("messages", required=True))
    if not messages:
        raise fields.error("messages", "must hold at least one message")
    for message in messages:
        _check_message(message)
    tools = list(fields.objects("tools"))
    for tool in tools:
        _check_tool(tool)
    logprobs = None
    if fields.flag("logprobs"):
        logprobs = fields.integer("top_logprobs", 0, MAX_LOGPROBS, 0)
    elif fields.any("top_logprobs"):
        raise fields.error("top_logprobs", "needs logprobs to be true")
    _refuse_formats(fields)
    name = "max_completion_tokens" if fields.any("max_completion_tokens") is not None else "max_tokens"
    kwargs = fields.object("chat_template_kwargs")
    if kwargs and "tools" in kwargs.values:
        raise kwargs.error("tools", "belongs at the top of the body")
    if kwargs:
        list(kwargs.objects("documents"))
    return ChatRequest(
        options=_options(fields, fields.integer(name, 1, MAX_TOKENS), logprobs),
        messages=tuple(message.values for message in messages),
        tools=tuple(tool.values for tool in tools),
        tool_choice=_tool_choice(fields, tools),
        template_kwargs=kwargs.values if kwargs else None,
    )


def parse_completion(body: object) -> CompletionRequest:
    """Read a completion body.

    Parameters
    ----------
    body : object
        What the JSON held.

    Returns
    -------
    CompletionRequest

    Raises
    ------
    FieldError
        If a field is missing, of the wrong kind or out of range.
    """
    fields = Fields(body)
    refuse_unsupported(fields)
    logprobs = fields.integer("logprobs", 0, MAX_LOGPROBS)
    echo = fields.flag("echo")
    if echo and logprobs is not None:
        raise fields.error("echo", "log-probabilities of the prompt are not available; drop echo or logprobs")
    if fields.any("suffix"):
        raise fields.error("suffix", "filling in the middle is not supported")
    n = fields.integer("n", 1, MAX_CHOICES, 1)
    if fields.integer("best_of", 1, MAX_CHOICES, n) != n:
        raise fields.error("best_of", f"must equal n ({n}): choices are not ranked")
    max_tokens = fields.integer("max_tokens", 1, MAX_TOKENS, DEFAULT_COMPLETION_TOKENS)
    prompts = _prompts(fields)
    if n * len(prompts) > MAX_SEQUENCES:
        raise fields.error(
            "n", f"{n} choices of {len(prompts)} prompts are {n * len(prompts)}, at most {MAX_SEQUENCES} are allowed"
        )
    return CompletionRequest(_options(fields, max_tokens, logprobs), prompts, echo)


def _options(fields: Fields, max_tokens: int | None, logprobs: int | None) -> Options:
    least = fields.integer("min_tokens", 0, MAX_TOKENS, 0)
    if max_tokens is not None and least > max_tokens:
        raise fields.error("min_tokens", f"must be at most max_tokens ({max_tokens}), got {least}")
    stream = fields.flag("stream")
    stream_options = fields.object("stream_options")
    if stream_options and not stream:
        raise fields.error("stream_options", "needs stream to be true")
    return Options(
        model=fields.text("model"),
        sampling=_sampling(fields),
        n=fields.integer("n", 1, MAX_CHOICES, 1),
        max_tokens=max_tokens,
        stop=_stops(fields),
        stream=stream,
        include_usage=bool(stream_options and stream_options.flag("include_usage")),
        logprobs=logprobs,
        decoding=parse_decoding(fields),
    )


def _sampling(fields: Fields) -> Sampling:
    settings = {
        "temperature": fields.number("temperature", 0, 100, 0.0),
        "top_k": fields.integer("top_k", -1, MAX_TOKENS, 0),
        "top_p": fields.number("top_p", 0, 1, 1.0),
        "min_p": fields.number("min_p", 0, 1, 0.0),
        "repetition_penalty": fields.number("repetition_penalty", 0, 100, 1.0),
        "presence_penalty": fields.number("presence_penalty", -2, 2, 0.0),
        "frequency_penalty": fields.number("frequency_penalty", -2, 2, 0.0),
        "logit_bias": _logit_bias(fields),
        "seed": fields.integer("seed", -(2**63), 2**64 - 1),
    }
    try:
        return Sampling(**settings)
    except RequestError as error:
        name, _, reason = str(error).partition(": ")
        raise fields.error(name, reason) from error


def _logit_bias(fields: Fields) -> dict[int, float]:
    bias = fields.object("logit_bias")
    if bias is None:
        return {}
    if len(bias.values) > MAX_BIASES:
        raise fields.error("logit_bias", f"holds {len(bias.values)} tokens, at most {MAX_BIASES} are allowed")
    for key in bias.values:
        if not (key.isascii() and key.isdigit() and len(key) < 10):
            raise fields.error("logit_bias", f"keys must be token ids, got {shown(key)}")
    return {int(key): bias.number(key, -100, 100, 0.0) for key in bias.values}


def _stops(fields: Fields) -> tuple[str, ...]:
    stops = fields.any("stop")
    if stops is None:
        return ()
    stops = [stops] if isinstance(stops, str) else stops
    if isinstance(stops, list) and len(stops) > MAX_STOPS:
        raise fields.error("stop", f"holds {len(stops)} strings, at most {MAX_STOPS} are allowed")
    if not isinstance(stops, list) or not all(isinstance(stop, str) and stop for stop in stops):
        raise fields.error("stop", f"must be a string or an array of strings, none of them empty, got {shown(stops)}")
    longest = max(map(len, stops), default=0)
    if longest > MAX_STOP_LENGTH:
        raise fields.error("stop", f"holds a string of {longest} characters, at most {MAX_STOP_LENGTH} are allowed")
    return tuple(stops)


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


def _check_message(message: Fields) -> None:
    message.text("role", required=True)
    content = message.any("content")
    if isinstance(content, list):
        for part in message.objects("content"):
            if part.text("type", required=True) != "text":
                raise part.error("type", f"only text can be read, got {shown(part.any('type'))}")
            part.text("text", required=True)
    elif content is not None and not isinstance(content, str):
        raise message.error("content", f"must be a string or an array of parts, got {shown(content)}")
    for call in message.objects("tool_calls"):
        function = call.object("function")
        if function is None:
            raise call.error("function", "is required")
        function.text("name", required=True)
        arguments = function.any("arguments")
        if arguments is not None and not isinstance(arguments, str | dict):
            raise function.error("arguments", f"must be a string that holds JSON, got {shown(arguments)}")


def _check_tool(tool: Fields) -> None:
    tool.choice("type", ("function",), "function")
    function = tool.object("function")
    if function is None:
        raise tool.error("function", "is required")
    function.text("name", required=True)


def _tool_choice(fields: Fields, tools: list[Fields]) -> str | Mapping[str, Any] | None:
    choice = fields.any("tool_choice")
    if choice is None or isinstance(choice, str):
        wanted = fields.choice("tool_choice", ("none", "auto", "required"))
        if wanted == "required" and not tools:
            raise fields.error("tool_choice", "is 'required', but tools holds none")
        return wanted
    function = Fields(choice, "tool_choice").object("function")
    if function is None:
        raise fields.error("tool_choice", f"must name a function, got {shown(choice)}")
    name = function.text("name", required=True)
    if name not in [tool.values["function"]["name"] for tool in tools]:
        raise fields.error("tool_choice", f"names {shown(name)}, which is not among the tools")
    return choice


def _refuse_formats(fields: Fields) -> None:
    wanted = fields.object("response_format")
    if wanted and wanted.text("type", "text") != "text":
        raise fields.error("response_format", f"only text is supported, got {shown(wanted.any('type'))}")
