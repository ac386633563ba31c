"""Random JSON schemas and tools, and a toy model over the demo's vocabulary that writes anything."""

import random
from functools import cache

import numpy as np
from demo_text import demo_tokenizer
from toy import Toy

WORDS = ["name", "zip code", "größe", "a/b", 'quo"te', "id", "π", "back\\slash", "new\nline", "x-y"]


def random_schema(seed):
    """An object or array at the top, at most four levels below; some parts stand in ``$defs``."""
    rng = random.Random(seed)
    definitions = {"leaf": _leaf(rng), "pair": _object(rng, 1, {})}
    schema = (_object if rng.random() < 0.8 else _array)(rng, rng.randint(1, 3), definitions)
    return {**schema, "$defs": definitions}


def _any(rng, depth, definitions):
    kinds = [_leaf] * 3 + ([_object, _array, _union] if depth else [])
    kind = rng.choice(kinds)
    if definitions and rng.random() < 0.1:
        return {"$ref": f"#/$defs/{rng.choice(list(definitions))}"}
    return kind(rng) if kind is _leaf else kind(rng, depth - 1, definitions)


def _object(rng, depth, definitions):
    keys = rng.sample(WORDS, rng.randint(1, 4))
    schema = {
        "type": "object",
        "properties": {key: _any(rng, depth, definitions) for key in keys},
        "required": rng.sample(keys, rng.randint(0, len(keys))),
    }
    return schema | ({} if rng.random() < 0.1 else {"additionalProperties": False})


def _array(rng, depth, definitions):
    low = rng.randint(0, 2)
    schema = {"type": "array", "items": _any(rng, depth, definitions), "minItems": low, "maxItems": low + rng.randint(0, 3)}
    return schema | ({"prefixItems": [_leaf(rng)]} if rng.random() < 0.2 else {})


def _union(rng, depth, definitions):
    return {"anyOf": [_any(rng, depth, definitions) for _ in range(2)]}


def _leaf(rng):
    low = rng.randint(-50, 50)
    return rng.choice(
        [
            {"type": "string"},
            {"type": "string", "minLength": rng.randint(0, 3), "maxLength": rng.randint(3, 12)},
            {"type": "string", "pattern": rng.choice(["^[a-c]{2,4}$", "^\\d{3}-\\d+$", "^(x|yy)*$"])},
            {"enum": rng.sample(["red", "grün", 'b"lue', 3, None, True, 1.5], rng.randint(1, 4))},
            {"const": rng.choice(["fixed", 7, None, [1, "two"], {"a": "<think>"}, "e\u0301"])},
            {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 3000)},
            {"type": "integer", "exclusiveMinimum": low},
            {"type": "number", "minimum": low, "maximum": low + rng.random()},
            {"type": "boolean"},
            {"type": ["string", "null"], "maxLength": 5},
            {"type": "null"},
        ]
    )


def random_tools(seed):
    """One to three functions; strings are free text, so none has a length or a pattern."""
    rng = random.Random(seed)
    kinds = [
        {"type": "string"},
        {"type": "string"},
        {"enum": ["read", "write", "a b"]},
        {"type": "integer"},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        {"$ref": "#/$defs/point"},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    ]
    point = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}
    tools = []
    for name in rng.sample(["read_file", "mcp__list-all", "größe", "go", "f.g"], rng.randint(1, 3)):
        keys = rng.sample(["path", "file_path", "n", "größe", "text", "x-y"], rng.randint(0, 4))
        parameters = {
            "type": "object",
            "properties": {key: rng.choice(kinds) for key in keys},
            "required": rng.sample(keys, rng.randint(0, len(keys))),
            "additionalProperties": False,
            "$defs": {"point": point},
        }
        tools.append({"type": "function", "function": {"name": name, "parameters": parameters}})
    return tools


@cache
def _rows():
    """Random logits; tokens that close something are likely, so that outputs end."""
    tokenizer = demo_tokenizer()
    rows = np.random.default_rng(0).standard_normal((48, tokenizer.n_vocab)).astype(np.float32) * 2
    closing = set(b'"]},:0123456789\n<>/')
    for token in range(tokenizer.n_vocab):
        if tokenizer.token_bytes(token)[:1] and closing.issuperset(tokenizer.token_bytes(token)):
            rows[:, token] += 6
    rows[:, list(tokenizer.eos_ids)] += 12
    return rows


@cache
def _closes():
    """The tokens by which a parameter ends: random text would never get there."""
    return [demo_tokenizer().encode(f"word\n</parameter>\n{tag}")[1:] for tag in ("</function>", "<parameter=")]


def _law(text):
    row = _rows()[(31 * len(text) + text[-1]) % 48].copy()
    if len(text) % 5 == 0:
        row[_closes()[0][0]] += 14
    closing = _closes()[len(text) // 32 % 2]
    n = next((n for n in range(len(closing) - 1, 0, -1) if list(text[-n:]) == closing[:n]), 0)
    if n:
        row[closing[n]] += 20
    return row


def scribbler(**arguments):
    """A toy whose logits are one of some random rows, by place and last token."""
    return Toy(demo_tokenizer().n_vocab, law=_law, context=8192, pages=512, **arguments)
