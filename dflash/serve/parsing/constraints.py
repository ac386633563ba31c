"""Fields that constrain the output of a request, under the names of OpenAI, vLLM and llama.cpp."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.lark import quoted
from dflash.generation.grammar.params import GrammarParams
from dflash.generation.messages.fields import FieldError, Fields, shown
from dflash.generation.recovery.tool_call_prefix import ToolChoice
from dflash.json_types import JsonMapping, JsonObject
from dflash.serve.limits import MAX_OPTIONS

_VLLM = ("json", "json_object", "regex", "choice", "grammar")
"""Fields of vLLM's ``structured_outputs``; the older fields are called the same after ``guided_``."""


_FORMAT = {"type": "json_object"}
_REFUSED = {
    "whitespace_pattern": "use regex or lark",
    "disable_any_whitespace": "use regex or lark",
    "disable_additional_properties": "write additionalProperties into the schema",
}
"""Fields of ``structured_outputs`` that would change what is legal; the others, such as the backend, change nothing."""


def parse_grammar(fields: Fields, tool_choice: ToolChoice = None) -> GrammarParams:
    """Read the constraints of a request; messages name the fields that it has."""
    found: JsonObject = {}
    names: dict[str, str] = {}

    def add(kind: str, name: str, value: object) -> None:
        if value is None:
            return
        if kind in names:
            raise FieldError(name, f"can't be combined with {names[kind]}; one constraint holds for the whole output")
        found[kind], names[kind] = value, name

    wanted = fields.object("response_format")
    if wanted is not None and wanted.any("type") != "text":
        add("response_format", fields.name("response_format"), wanted.values)
    add("response_format", "json_schema", _schema(fields, "json_schema"))
    for name in ("regex", "lark", "grammar"):
        add(name, name, _text(fields, name))
    structured = fields.object("structured_outputs")
    for name, alternative in _REFUSED.items():
        if structured is not None and structured.any(name):
            raise structured.error(name, f"is not supported: {alternative}")
    sources = [(fields, f"guided_{name}", name) for name in _VLLM]
    sources += [(structured, name, name) for name in (*_VLLM, "structural_tag") if structured is not None]
    for source, field, name in sources:
        kind, read = _READERS[name]
        add(kind, source.name(field), read(source, field))
    return grammar_params(**found, tool_choice=tool_choice, names=names)


def grammar_params(**settings: Any) -> GrammarParams:
    """Return the constraints of a request; a wrong one is an error of its field."""
    try:
        return GrammarParams(**settings)
    except RequestError as error:
        name, _, reason = str(error).partition(": ")
        raise FieldError(name, reason) from error


def _text(fields: Fields, name: str) -> str | None:
    return fields.text(name) or None


def _schema(fields: Fields, name: str) -> JsonMapping | None:
    schema = fields.any(name)
    if isinstance(schema, str) and schema:
        try:
            schema = json.loads(schema)
        except (ValueError, RecursionError) as error:
            raise fields.error(name, f"is not valid JSON: {error!s:.100}") from None
    if schema in (None, "") or (schema == {} and name == "json_schema"):
        return None
    if not isinstance(schema, dict | bool):
        raise fields.error(name, f"must be a JSON schema, got {shown(schema)}")
    return {"type": "json_schema", "json_schema": {"schema": schema}}


def _choice(fields: Fields, name: str) -> str | None:
    options = fields.list(name)
    if not options:
        return None
    if len(options) > MAX_OPTIONS:
        raise fields.error(name, f"holds {len(options)} texts, at most {MAX_OPTIONS} are allowed")
    if not all(isinstance(option, str) and option for option in options):
        raise fields.error(name, f"must be an array of texts, none of them empty, got {shown(options)}")
    # one terminal: masks of as many rules would take milliseconds
    return f"start: OPTION\nOPTION: {' | '.join(map(quoted, dict.fromkeys(options)))}"


def _refused(fields: Fields, name: str) -> None:
    if fields.any(name):
        raise fields.error(name, "is not supported: use tools with strict")


_READERS: Mapping[str, tuple[str, Callable[[Fields, str], Any]]] = {
    "json": ("response_format", _schema),
    "json_object": ("response_format", lambda fields, name: _FORMAT if fields.flag(name) else None),
    "regex": ("regex", _text),
    "choice": ("lark", _choice),
    "grammar": ("grammar", _text),
    "structural_tag": ("lark", _refused),
}
"""Field of vLLM to the kind of constraint and the function that reads it."""
