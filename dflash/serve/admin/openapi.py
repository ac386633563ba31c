"""Description of the HTTP API in OpenAPI 3.1, for clients and fuzzers."""

from collections.abc import Iterable, Mapping
from typing import Any

from starlette.routing import BaseRoute, Route

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.distribution import release
from dflash.json_types import JsonObject
from dflash.serve.limits import MAX_BIASES, MAX_CHOICES, MAX_RECOVERIES, MAX_STOP_LENGTH, MAX_STOPS

Schema = JsonObject

_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"type": ["boolean", "null"]}
_NONEMPTY: Schema = {"type": "string", "minLength": 1}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}, "minItems": 1}


def _number(low: float, high: float) -> Schema:
    return {"type": ["number", "null"], "minimum": low, "maximum": high}


def _whole(low: int, high: int) -> Schema:
    return {"type": ["integer", "null"], "minimum": low, "maximum": high}


def _object(required: Iterable[str] = (), **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _array(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, {"type": "null"}]}


_SAMPLING: dict[str, Schema] = {
    "temperature": _number(0, 100),
    "top_k": _whole(-1, MAX_TOKENS),
    "top_p": _number(0, 1),
    "min_p": _number(0, 1),
    "repetition_penalty": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 100},
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "seed": _whole(-(2**63), 2**64 - 1),
    "logit_bias": {
        "type": ["object", "null"],
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "additionalProperties": _number(-100, 100),
        "maxProperties": MAX_BIASES,
    },
}

_SHARED: dict[str, Schema] = {
    **_SAMPLING,
    "model": {"type": ["string", "null"]},
    "n": _whole(1, MAX_CHOICES),
    "max_tokens": _whole(1, MAX_TOKENS),
    "min_tokens": _whole(0, MAX_TOKENS),
    "stop": _any(
        {**_NONEMPTY, "maxLength": MAX_STOP_LENGTH}, _array({**_NONEMPTY, "maxLength": MAX_STOP_LENGTH}, maxItems=MAX_STOPS)
    ),
    "stream": _FLAG,
    "stream_options": _any(_object(include_usage=_FLAG)),
    "strategy": {"type": ["string", "null"]},
    "recover": _any(_TEXT, _array(_TEXT, maxItems=MAX_RECOVERIES)),
}

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
    "model": {"type": ["string", "null"]},
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
        **_CHAT,
        **_SHARED,
        max_completion_tokens=_whole(1, MAX_TOKENS),
        logprobs=_FLAG,
        top_logprobs=_whole(0, 20),
        tool_choice=_any(
            {"enum": ["none", "auto", "required"]},
            _object(["type", "function"], type={"const": "function"}, function=_object(["name"], name=_TEXT)),
        ),
        parallel_tool_calls=_FLAG,
        response_format=_any(_object(["type"], type={"enum": ["text", "json_object", "json_schema"]})),
        regex={"type": ["string", "null"]},
        lark={"type": ["string", "null"]},
    ),
    "/v1/completions": _object(
        ["prompt"],
        **_SHARED,
        prompt={"anyOf": [_TEXT, _IDS, _array({"anyOf": [_TEXT, _IDS]}, minItems=1, maxItems=MAX_CHOICES)]},
        logprobs=_whole(0, 20),
        echo=_FLAG,
    ),
    "/v1/responses": _object(
        ["input"],
        **{name: schema for name, schema in _SHARED.items() if name not in ("n", "max_tokens")},
        input={"anyOf": [_NONEMPTY, _array(_object(), minItems=1)]},
        instructions={"type": ["string", "null"]},
        max_output_tokens=_whole(1, MAX_TOKENS),
        tools=_any(_array(_object(["type"], type=_TEXT))),
        parallel_tool_calls=_FLAG,
        store=_FLAG,
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
        **_MESSAGES,
        **_SAMPLING,
        max_tokens={**_whole(1, MAX_TOKENS), "type": "integer"},
        stop_sequences=_SHARED["stop"],
        stream=_FLAG,
    ),
    "/v1/messages/count_tokens": _object(["messages"], **_MESSAGES),
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
