"""Schemas in the style of programs that publish them: pydantic, zod-to-json-schema, Go servers, MCP servers, schemastore."""

import random

NAMES = [
    "id",
    "name",
    "created_at",
    "tags",
    "owner",
    "url",
    "path",
    "score",
    "items",
    "meta",
    "email",
    "kind",
    "limit",
    "@type",
]
FORMATS = [
    "date-time",
    "uri",
    "email",
    "uuid",
    "path",
    "binary",
    "password",
    "int64",
    "phone",
    "url",
    "date",
    "regex",
    "ipv4",
]
PATTERNS = [
    "^[a-z0-9-]+$",
    "^(?!-)[a-z]+$",
    r"^\d{3}-\d{4}$",
    r"\bv[0-9]+",
    "^.{1,64}$",
    r"^[^\s@]+@[^\s@]+$",
    r"^#[\da-fA-F]{6}$",
]


def _leaf(rng):
    text = {"type": "string"}
    return rng.choice(
        [
            text,
            text | {"format": rng.choice(FORMATS)},
            text | {"pattern": rng.choice(PATTERNS)},
            text | {"minLength": 1, "maxLength": rng.choice([20, 255, 65_536])},
            {"type": "integer", "minimum": 0, "maximum": 9_007_199_254_740_991},
            {"type": "integer", "format": "int64", "exclusiveMinimum": 0},
            {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
            {"type": "number", "multipleOf": 0.01},
            {"type": "boolean", "default": False},
            {"type": "string", "enum": ["draft", "published", 'it\'s "odd"']},
            {"const": rng.choice(["v1", 1, None, True])},
            {"enum": ["a", 1, None]},
            {},
            True,
        ]
    )


def pydantic(rng, depth=2):
    """``model_json_schema()``: titles, ``$defs``, ``anyOf`` with null, defaults."""
    names = rng.sample(NAMES, rng.randint(1, 5))
    properties = {}
    for name in names:
        part = _value(rng, depth, lambda r, d: {"$ref": "#/$defs/Node"} if r.random() < 0.5 else pydantic(r, d))
        part = part if isinstance(part, dict) else {}
        if rng.random() < 0.4:
            part = {"anyOf": [part, {"type": "null"}], "default": None}
        properties[name] = {**part, "title": name.title()}
    found = {"properties": properties, "title": "Model", "type": "object", "required": names[:1]}
    node = {
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "title": "Node",
        "type": "object",
    }
    return found | ({"$defs": {"Node": node}} if depth == 2 else {})


def zod(rng, depth=2):
    """zod-to-json-schema: references into properties, ``not: {}``, ``propertyNames``, closed objects, ``allOf``."""
    names = rng.sample(NAMES, rng.randint(1, 5))
    properties = {name: _value(rng, depth, zod) for name in names}
    if depth == 2 and len(names) > 1:
        properties[names[-1]] = {"$ref": f"#/properties/{names[0]}"}
    extra = rng.choice(
        [
            {},
            {"propertyNames": {"type": "string"}},
            {"unevaluatedProperties": False} if rng.random() < 0.3 else {},
            {"minProperties": 1},
        ]
    )
    found = {"type": "object", "properties": properties, "required": names[:2], "additionalProperties": False, **extra}
    if rng.random() < 0.2 and depth < 2:
        return {"allOf": [found, {"type": "object", "properties": {"extra": {"type": "string"}}}]}
    return found | ({"$schema": "http://json-schema.org/draft-07/schema#"} if depth == 2 else {})


def go(rng, depth=2):
    """Go servers: ``null`` for empty lists, ``$id``, ``definitions``, types in capitals of other programs."""
    names = rng.sample(NAMES, rng.randint(1, 4))
    found = {"type": rng.choice(["object", "OBJECT"]), "properties": {name: _value(rng, depth, go) for name in names}}
    found |= {"required": rng.choice([None, [], names[:1]]), "additionalProperties": rng.choice([True, False])}
    return found | ({"$id": "https://example.com/x", "enum": None, "definitions": {}} if depth == 2 else {})


def mcp(rng, depth=2):
    """Servers of tools: examples, ``oneOf`` of shapes, dependencies, ``uniqueItems``, empty objects."""
    names = rng.sample(NAMES, rng.randint(0, 4))
    properties = {name: _value(rng, depth, mcp) for name in names}
    properties["target"] = {
        "oneOf": [
            {"type": "object", "properties": {"by": {"const": "id"}, "id": {"type": "integer"}}, "required": ["by", "id"]},
            {"type": "object", "properties": {"by": {"const": "name"}, "name": {"type": "string"}}, "required": ["by"]},
            *([{"type": "object", "properties": {"any": {}}}] if rng.random() < 0.4 else []),
        ]
    }
    extra = rng.choice([{}, {"dependencies": {"id": ["name"]}}, {"dependentRequired": {}}, {"if": {}, "then": {}}])
    return {"type": "object", "properties": properties, "description": "d", "examples": [{}], **extra}


def schemastore(rng, depth=2):
    """Files of settings: ``patternProperties``, tuples of draft 7, ``$comment``, ``definitions`` and ``allOf``."""
    names = rng.sample(NAMES, rng.randint(1, 5))
    definitions = {
        "glob": {"type": "string", "description": "A pattern"},
        "list": {"type": "array", "items": {"$ref": "#/definitions/glob"}},
    }
    properties = {name: _value(rng, depth, schemastore) for name in names}
    properties["files"] = {"$ref": "#/definitions/list", "description": "d"}
    properties["pair"] = {"type": "array", "items": [{"type": "string"}, {"type": "number"}], "additionalItems": False}
    found = {"type": "object", "properties": properties, "patternProperties": {"^x-": {}}, "$comment": "c"}
    if rng.random() < 0.3:
        found["not"] = {"required": ["files", "pair"]}
    if depth == 2:
        return found | {"definitions": definitions, "$schema": "http://json-schema.org/draft-07/schema#"}
    return {key: value for key, value in found.items() if key != "patternProperties"} | {
        "properties": {key: value for key, value in properties.items() if key != "files"}
    }


def _value(rng, depth, inner):
    if depth and rng.random() < 0.3:
        return inner(rng, depth - 1)
    if depth and rng.random() < 0.3:
        unique = {"uniqueItems": rng.random() < 0.3}
        return {"type": "array", "items": _leaf(rng), "minItems": rng.choice([0, 1])} | (
            unique if rng.random() < 0.5 else {}
        )
    if depth and rng.random() < 0.1:
        return {
            "type": "object",
            "additionalProperties": _leaf(rng),
            "propertyNames": rng.choice([{"pattern": "^[a-z]+$"}, {}]),
        }
    return _leaf(rng)


def public_schema(seed):
    """One of the styles in turn."""
    rng = random.Random(seed)
    return [pydantic, zod, go, mcp, schemastore][seed % 5](rng)
