"""Bodies of ``/v1/responses``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dflash.generation.messages.fields import FieldError, Fields, shown
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.http_errors import Problem
from dflash.serve.limits import Limits
from dflash.serve.parsing.body import parse_json
from dflash.serve.parsing.constraints import parse_grammar
from dflash.serve.parsing.options import parse_options
from dflash.serve.parsing.template_kwargs import parse_template_kwargs
from dflash.serve.request_fields.row import RESPONSES
from dflash.serve.request_fields.table import known_fields, read
from dflash.serve.requests import ChatRequest
from dflash.serve.responses.items import messages_of
from dflash.serve.responses.store import ResponseStore, as_json
from dflash.serve.responses.tools import Tools, parse_tool_choice, parse_tools

_ECHOED = ("instructions", "max_output_tokens", "previous_response_id", "prompt_cache_key", "safety_identifier", "user")
_ENCRYPTED, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_KEPT = {"all_turns": True, "current_turn": False}
"""Values of ``reasoning.context``; others leave the choice to the chat template."""


@dataclass(frozen=True, slots=True)
class ResponsesRequest(ChatRequest):
    """A request of the Responses API.

    items: input items as JSON, for the store; without those of earlier responses.
    wants_encrypted: the client sends reasoning back only if it has ``encrypted_content``.
    """

    tools_by_name: JsonMapping = field(default_factory=dict)
    echo: JsonMapping = field(default_factory=dict)
    items: bytes = b"[]"
    store: bool = True
    user: str = ""
    wants_encrypted: bool = False


def parse_responses(
    body: object,
    store: ResponseStore,
    user: str = "",
    limits: Limits = Limits(),  # noqa: B008 - immutable
) -> ResponsesRequest:
    """Read a body.

    user: only responses of this user exist.
    Raises Problem: 400 if the previous response is not stored.
    """
    fields = known_fields(body, RESPONSES)
    include = fields.list("include") or []
    if _LOGPROBS in include:
        raise fields.error("include", f"{_LOGPROBS} is not supported: use /v1/chat/completions with logprobs")
    truncation = fields.choice("truncation", ("disabled", "auto"), "disabled")
    tool_choice, tools = parse_tool_choice(fields, parse_tools(fields))
    items = _items(fields)
    text = fields.object("text") or Fields({}, "text")
    reasoning = fields.object("reasoning") or Fields({}, "reasoning")
    options = parse_options(fields, RESPONSES, read(fields, RESPONSES, "max_output_tokens"))
    stored, metadata = read(fields, RESPONSES, "store"), fields.object("metadata")
    return ResponsesRequest(
        options=options,
        messages=tuple(_messages(fields, items, tools, partial(_earlier, store=store, user=user, limits=limits))),
        tools=tools.functions,
        grammar=_grammar(fields, text, tool_choice),
        template_kwargs=parse_template_kwargs(fields, _template_defaults(reasoning)),
        parallel_tool_calls=read(fields, RESPONSES, "parallel_tool_calls"),
        drop_oldest=truncation == "auto",
        tools_by_name=tools.known,
        echo={
            **{name: fields.any(name) for name in _ECHOED},
            "frequency_penalty": options.sampling.frequency_penalty,
            "max_tool_calls": read(fields, RESPONSES, "max_tool_calls"),
            "metadata": metadata.values if metadata else {},
            "parallel_tool_calls": read(fields, RESPONSES, "parallel_tool_calls"),
            "presence_penalty": options.sampling.presence_penalty,
            "reasoning": {"effort": None, "summary": None, **reasoning.values},
            "store": stored,
            "temperature": options.sampling.temperature,
            "text": {"format": {"type": "text"}, **text.values},
            "tool_choice": fields.any("tool_choice") or "auto",
            "tools": fields.any("tools") or [],
            "top_p": options.sampling.top_p,
            "truncation": truncation,
        },
        items=as_json(items) if stored else b"[]",
        store=stored,
        user=user,
        wants_encrypted=_ENCRYPTED in include,
    )


def _items(fields: Fields) -> list[Any]:
    given = fields.any("input", required=True)
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list):
        raise fields.error("input", f"must be a string or an array of items, got {shown(given)}")
    return given


def _earlier(previous: str, store: ResponseStore, user: str, limits: Limits) -> list[Any]:
    """Return the items of a stored conversation, if it is no longer than a body may be."""
    field, found = "previous_response_id", store.conversation(previous, user)
    if found is None:
        raise not_found("Previous response", previous, 400, field, "previous_response_not_found")
    if len(found) > limits.body_bytes:
        raise FieldError(field, f"the conversation has {len(found)} bytes, at most {limits.body_bytes} are allowed")
    try:
        items: list[Any] = parse_json(found, limits)
    except Problem as problem:
        raise FieldError(field, str(problem).replace("the body", "the conversation", 1)) from problem
    return items


def _messages(
    fields: Fields, items: list[Any], tools: Tools, earlier_items: Callable[[str], list[Any]]
) -> list[JsonMapping]:
    instructions, previous = fields.text("instructions"), fields.text("previous_response_id")
    earlier = [] if previous is None else earlier_items(previous)
    messages = messages_of(earlier, tools, "previous_response_id") + messages_of(items, tools)
    if not messages:
        raise fields.error("input", "must hold at least one message")
    return [{"role": "system", "content": instructions}, *messages] if instructions else messages


def not_found(thing: str, id_: str, status: int, param: str | None = None, code: str | None = None) -> Problem:
    """Return the refusal of an unknown or forgotten response, in OpenAI's words."""
    return Problem(status, f"{thing} with id {id_[:100]!r} not found.", param=param, code=code)


def _grammar(fields: Fields, text: Fields, tool_choice: Any) -> Any:
    form = text.object("format")
    wanted = None if form is None else form.values
    if form is not None and form.choice("type", ("text", "json_object", "json_schema"), "text") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": {key: value for key, value in form.values.items() if key != "type"}}
    return parse_grammar(fields.renamed({"response_format": text.name("format")}, {"response_format": wanted}), tool_choice)


def _template_defaults(reasoning: Fields) -> JsonObject:
    """Return the variables of the chat template that ``reasoning`` sets, under the names of Qwen's templates."""
    off = {"enable_thinking": False} if reasoning.text("effort") == "none" else {}
    kept = _KEPT.get(reasoning.text("context", ""))
    return off if kept is None else {**off, "preserve_thinking": kept}
