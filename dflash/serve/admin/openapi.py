"""Description of the HTTP API in OpenAPI 3.1, for clients and fuzzers."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Route

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.distribution import release
from dflash.json_types import JsonObject
from dflash.serve.limits import MAX_BIASES, MAX_CHOICES, MAX_RECOVERIES, MAX_STOP_LENGTH, MAX_STOPS
from dflash.serve.request_fields.kinds import MAX_ID, flag, number, text, whole
from dflash.serve.request_fields.row import CHAT, COMPLETIONS, MESSAGES, RESPONSES, Outcome
from dflash.serve.request_fields.table import TABLE

Schema = JsonObject

_TEXT: Schema = {"type": "string"}
_FLAG = flag().schema
_NONEMPTY: Schema = {"type": "string", "minLength": 1}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": MAX_ID}, "minItems": 1}


def _object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, {"type": "null"}]}


def _plain(api: str) -> dict[str, Schema]:
    """Return the fields with a plain value that act in an API, from the table of request fields."""
    rows = TABLE[api].values()
    return {row.name: row.kind.schema for row in rows if row.kind is not None and row.outcome is Outcome.DONE}


_STOP = {**_NONEMPTY, "maxLength": MAX_STOP_LENGTH}
_SHARED: dict[str, Schema] = {
    "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 100},
    "logit_bias": {
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": number(-100, 100).schema,
        "maxProperties": MAX_BIASES,
    },
    "min_tokens": whole(0, MAX_TOKENS).schema,
    "strategy": {"type": ["string", "null"]},
    "recover": _any(_TEXT, _array(_TEXT, maxItems=MAX_RECOVERIES)),
}
_STOPS: dict[str, Schema] = {"stop": _any(_STOP, _array(_STOP, maxItems=MAX_STOPS))}
_STREAM: dict[str, Schema] = {"stream_options": _any(_object(include_usage=_FLAG))}

_PARTS = _array(_object(["type", "text"], type={"const": "text"}, text=_TEXT))

_CALL = _object(
    ["function"],
    id=_TEXT,
    type={"const": "function"},
    function=_object(["name"], name=_TEXT, arguments={"type": ["string", "object", "null"]}),
)

_MESSAGE = _object(
    ["role"],
    role={"enum": ["system", "developer", "user", "assistant", "tool"]},
    content=_any(_TEXT, _PARTS),
    reasoning_content={"type": ["string", "null"]},
    tool_calls=_any(_array(_CALL)),
    tool_call_id={"type": ["string", "null"]},
)

_FUNCTION = _object(["name"], name=_NONEMPTY, description=_TEXT, parameters={"type": "object"}, strict=_FLAG)

_CHAT: dict[str, Schema] = {
    "messages": _array(_MESSAGE, minItems=1),
    "tools": _any(_array(_object(["type", "function"], type={"const": "function"}, function=_FUNCTION))),
    "chat_template_kwargs": {"type": ["object", "null"]},
}

_MESSAGES: dict[str, Schema] = {
    "messages": _array(
        _object(["role"], role={"enum": ["user", "assistant", "system"]}, content=_any(_TEXT, _PARTS)), minItems=1
    ),
    "system": _any(_TEXT, _PARTS),
    "tools": _any(_array(_object(["name"], name=_NONEMPTY, description=_TEXT, input_schema={"type": "object"}))),
    "tool_choice": _any(_object(["type"], type={"enum": ["auto", "any", "tool", "none"]}, name=_TEXT)),
    "thinking": _any(_object(["type"], type={"enum": ["enabled", "disabled", "adaptive"]})),
}

BODIES: Mapping[str, Schema] = {
    "/v1/chat/completions": _object(
        ["messages"],
        **_plain(CHAT) | _SHARED | _STOPS | _STREAM | _CHAT,
        tool_choice=_any(
            {"enum": ["none", "auto", "required"]},
            _object(["type", "function"], type={"const": "function"}, function=_object(["name"], name=_TEXT)),
        ),
        response_format=_any(_object(["type"], type={"enum": ["text", "json_object", "json_schema"]})),
        regex={"type": ["string", "null"]},
        lark={"type": ["string", "null"]},
    ),
    "/v1/completions": _object(
        ["prompt"],
        **_plain(COMPLETIONS) | _SHARED | _STOPS | _STREAM,
        prompt={"anyOf": [_TEXT, _IDS, _array({"anyOf": [_TEXT, _IDS]}, minItems=1, maxItems=MAX_CHOICES)]},
    ),
    "/v1/responses": _object(
        ["input"],
        **_plain(RESPONSES) | _SHARED | _STOPS,
        input={"anyOf": [_NONEMPTY, _array(_object(), minItems=1)]},
        instructions={"type": ["string", "null"]},
        tools=_any(_array(_object(["type"], type=_TEXT))),
        previous_response_id={"type": ["string", "null"]},
    ),
    "/v1/responses/input_tokens": _object(
        ["input"],
        model={"type": ["string", "null"]},
        input={"anyOf": [_NONEMPTY, _array(_object(), minItems=1)]},
        instructions={"type": ["string", "null"]},
        tools=_any(_array(_object(["type"], type=_TEXT))),
        previous_response_id={"type": ["string", "null"]},
    ),
    "/v1/messages": _object(
        ["messages", "max_tokens"],
        **_plain(MESSAGES) | _SHARED | _MESSAGES | {"max_tokens": {**whole(1, MAX_TOKENS).schema, "type": "integer"}},
        stop_sequences=_STOPS["stop"],
    ),
    "/v1/messages/count_tokens": _object(["messages"], model=text().schema, **_MESSAGES),
    "/tokenize": {
        "oneOf": [
            _object(["content"], content=_TEXT, add_special=_FLAG, parse_special=_FLAG, with_pieces=_FLAG),
            _object(["prompt"], prompt=_TEXT, add_special_tokens=_FLAG, return_token_strs=_FLAG),
            _object(["messages"], **_CHAT, add_special_tokens=_FLAG, return_token_strs=_FLAG),
        ]
    },
    "/detokenize": _object(["tokens"], tokens=_array({"type": "integer", "minimum": 0})),
    "/apply-template": _object(["messages"], **_CHAT),
}
"""Schema of the body for each path that takes one. Fields without an entry are ignored, or checked by the server alone."""

_OPEN = ("/health", "/")
"""Paths that need no key."""

_ERROR = _object(["error"], error=_object(["message", "type"], message=_TEXT, type=_TEXT))


def openapi(routes: Iterable[BaseRoute]) -> JsonObject:
    """Describe the routes of an application."""
    paths: dict[str, JsonObject] = {}
    for route in routes:
        if isinstance(route, Route):
            path, parameters = _path(route)
            for method in sorted((route.methods or {"GET"}) - {"HEAD"}):
                paths.setdefault(path, {})[method.lower()] = _operation(route, method, parameters)
    return {
        "openapi": "3.1.0",
        "info": {"title": "dflash", "version": release()},
        "components": {"securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}, "schemas": {"Error": _ERROR}},
        "paths": paths,
    }


def _path(route: Route) -> tuple[str, list[Schema]]:
    path, parameters = route.path, []
    for name in route.param_convertors:
        path = path.replace(f"{{{name}:path}}", f"{{{name}}}")
        parameters.append({"name": name, "in": "path", "required": True, "schema": _NONEMPTY})
    return path, parameters


def _operation(route: Route, method: str, parameters: list[Schema]) -> JsonObject:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: JsonObject = {
        "operationId": f"{method.lower()} {route.path}",
        "security": [] if route.path in _OPEN else [{"bearer": []}],
        "responses": {"200": {"description": "answered"}, "default": {"description": "refused or failed", "content": error}},
    }
    if parameters:
        operation["parameters"] = parameters
    if route.path in BODIES and method == "POST":
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": BODIES[route.path]}}}
    return operation
