"""Fields of a request that constrain its output."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.bounds.schemas import check_depth
from dflash.generation.grammar.limits import MAX_CHARACTERS
from dflash.generation.recovery.tool_call_prefix import ToolChoice
from dflash.json_types import JsonMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarParams:
    """Constraints on the output of a request. At most one of the first four, not together with a tool that must be called.

    response_format: ``{"type": "json_object"}``, with or without a ``schema``. Or as in OpenAI's API ``{"type":
        "json_schema", "json_schema": {"schema": ...}}``. ``{"type": "text"}`` is no constraint.
    regex: regular expression of the whole output, in the syntax of Rust's `regex` without anchors, look-around and
        references.
    lark: grammar in llguidance's variant of Lark; its first rule is ``start``. A grammar in llama.cpp's GBNF, with the first
        rule ``root ::=``, is converted.
    tool_choice: ``"required"``, or the function to call as ``{"type": "function", "function": {"name": ...}}``. With
        ``"auto"``, calls of tools with ``"strict": true`` are constrained; with ``"none"`` tools stay in the prompt and none
        is called.
    names: what the request calls these fields, where it calls them otherwise; messages begin with that name.
    """

    response_format: JsonMapping | None = None
    regex: str | None = None
    lark: str | None = None
    grammar: str | None = None
    tool_choice: ToolChoice = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("regex", "lark", "grammar"):
            _check_text(self.name_of(name), getattr(self, name))
        _check_tool_choice(self.tool_choice)
        given = [self.name_of(name) for name in ("regex", "lark", "grammar") if getattr(self, name) is not None]
        if self.schema is not None:
            given.insert(0, self.name_of("response_format"))
        if self.must_call:
            given.append("tool_choice")
        if len(given) > 1:
            raise RequestError(f"{given[0]}: can't be combined with {given[1]}; one constraint holds for the whole output")

    def name_of(self, field: str) -> str:
        """Return what the request calls a field."""
        return self.names.get(field, field)

    @property
    def schema(self) -> Any:
        """JSON schema of the output; None if there is none."""
        return None if self.response_format is None else _schema(self.name_of("response_format"), self.response_format)

    @property
    def is_strict(self) -> bool:
        """True if a JSON schema of the output must be enforced wholly."""
        inner = (self.response_format or {}).get("json_schema", self.response_format)
        return isinstance(inner, Mapping) and inner.get("strict") is True

    @property
    def must_call(self) -> bool:
        """True if the output must be a tool call."""
        return self.tool_choice not in (None, "auto", "none")

    @property
    def is_bound(self) -> bool:
        """True if the output must be a tool call or JSON: nothing in it is free text."""
        return self.must_call or self.schema is not None

    @property
    def function(self) -> str | None:
        """Name of the function that must be called; None for any."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, Mapping) else None


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise RequestError(f"{name}: must be a string, got {value!r:.60}")
    _check_length(name, value)


def _check_length(name: str, text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        raise RequestError(f"{name}: has {len(text)} characters, at most {MAX_CHARACTERS} are allowed")


def _check_tool_choice(choice: object) -> None:
    if choice in (None, "auto", "none", "required") and not isinstance(choice, Mapping):
        return
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(
            "tool_choice: must be 'auto', 'none', 'required' or {'type': 'function', 'function': {'name': ...}}, "
            f"got {choice!r:.60}"
        )


def _schema(name: str, wanted: Any) -> Any:
    kind = wanted.get("type") if isinstance(wanted, Mapping) else None
    if kind == "text":
        return None
    if kind == "json_object" and wanted.get("schema") is None:
        return {"type": "object"}
    if kind == "json_object":
        wanted, kind = {"schema": wanted["schema"]}, "json_schema"
    if kind != "json_schema":
        raise RequestError(f"{name}: type must be text, json_object or json_schema, got {wanted!r:.60}")
    inner = wanted.get("json_schema", wanted)
    schema = inner.get("schema") if isinstance(inner, Mapping) else None
    if not isinstance(schema, Mapping | bool):
        raise RequestError(f"{name}: json_schema.schema must be a JSON schema, got {schema!r:.60}")
    return check_schema(name, schema)


def check_schema(name: str, schema: object) -> Any:
    """Return a schema; raise a RequestError that begins with `name` if it is not JSON, too large or too deep."""
    try:
        check_depth(schema)
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise RequestError(f"{name}: the schema is not JSON: {error!s:.100}") from None
    _check_length(name, text)
    return schema
