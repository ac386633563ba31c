"""Random strict tools whose schemas use every keyword that is enforced, and random legal outputs of a grammar."""

import random
import re
from functools import cache

import numpy as np
from demo_text import demo_tokenizer

TAGS = ["</parameter>", "</function>", "<parameter=path>", "\n</parameter>\n", "\n</function>\n", "\n<parameter=q>\n"]
TAGS += [
    "</tool_call>",
    "<tool_call>",
    "<think>",
    "</think>",
    "\n</parameter>\n<parameter=path>\n",
    "\n</parameter>\n</function>\n",
    "<function=go>",
]
WORDS = [
    "a",
    '"',
    "\\",
    "\n",
    "\n\n",
    " ",
    "def f():\n    return {1: 'x'}",
    "é",
    "π",
    "🔎",
    "\u2028",
    "5",
    "true",
    "null",
    "[1",
    "{",
]

TEXTS = [
    {"type": "string"},
    {"type": "string", "minLength": 1, "maxLength": 12},
    {"type": "string", "pattern": "^[0-9]{4}$"},
    {"type": "string", "pattern": "b.d|^x"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "enum": ["celsius", "kelvin", "5"]},
    {"const": "fixed </parameter>"},
    {"type": "string", "not": {"pattern": "a"}, "minLength": 2},
    {"type": "string", "not": {"enum": ["", "x"]}},
    {"anyOf": [{"type": "string", "enum": ["low", "high"]}, {"type": "null"}]},
    {"type": ["string", "null"], "maxLength": 5},
    {"type": ["string", "integer"]},
    {"type": ["string", "boolean", "null"], "not": {"const": "true"}},
    {"enum": ["a", 1, None, True, 2.5, [1], {"b": None}]},
    {"oneOf": [{"type": "string", "pattern": "^a"}, {"type": "string", "pattern": "b$"}]},
    {"if": {"pattern": "^a"}, "then": {"maxLength": 3}, "else": {"minLength": 1}, "type": "string"},
    {"$ref": "#/$defs/name"},
    {"allOf": [{"$ref": "#/$defs/name"}, {"minLength": 3}]},
    {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "array", "items": {"type": "integer"}}]},
    {},
]
OTHERS = [
    {"type": "integer", "minimum": 3, "maximum": 40},
    {"type": "boolean"},
    {"type": ["boolean", "null"]},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1.5},
    {"type": "array", "items": {"type": "string", "pattern": "^[a-c]{1,3}$"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"$ref": "#/properties/path"}, "maxItems": 2},
    {"$ref": "#/$defs/point"},
    {"type": ["array", "null"], "prefixItems": [{"const": 1}], "items": False},
    {"oneOf": [{"type": "integer"}, {"$ref": "#/$defs/point"}]},
    {"type": "object", "propertyNames": {"pattern": "^k"}, "additionalProperties": {"type": "string", "format": "uuid"}},
]
DEFINITIONS = {
    "name": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 8},
    "point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False},
}


def strict_tool(seed, name="go"):
    """A strict tool: some parameters, at times behind a reference, ``allOf`` or ``anyOf`` at the top."""
    rng = random.Random(seed)
    keys = ["path", *rng.sample(["q", "n", "größe", "a b", "mode"], rng.randint(0, 4))]
    properties = {key: rng.choice(TEXTS if rng.random() < 0.65 else OTHERS) for key in keys}
    properties["path"] = rng.choice(TEXTS[:8])
    required = rng.sample(keys, rng.randint(0, len(keys)))
    inner = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    form = seed % 6
    if form == 3:
        inner = {"$ref": "#/$defs/args", "properties": {"path": properties["path"]}, "$defs": {"args": inner}}
    elif form == 4:
        inner = {"allOf": [{"properties": {"path": properties["path"]}}, {**inner, "additionalProperties": True}]}
        inner["properties"] = {"path": properties["path"]}
    elif form == 5:
        inner = {**inner, "anyOf": [{"required": [key]} for key in keys]}
    definitions = {**DEFINITIONS, **inner.get("$defs", {})}
    return {"type": "function", "function": {"name": name, "strict": True, "parameters": {**inner, "$defs": definitions}}}


@cache
def _endings():
    ends = "\n</parameter>\n</function>\n", "\n</parameter>\n<parameter=", '"', '"}', '"]', '": "', "}}\n"
    return [demo_tokenizer().encode(text, special=False) for text in ends]


@cache
def _pieces():
    return [demo_tokenizer().encode(text, special=False) for text in (*TAGS, *WORDS)]


def legal_output(matcher, seed, max_tokens=1500):
    """Walk at random over the masks of a grammar until it ends. Returns its tokens; None if it takes too long.

    It often tries to write tags, code and the ends of values; what is legal of that stays.
    """
    rng, plan, found = random.Random(seed), [], []
    for step in range(max_tokens):
        if matcher.is_complete:
            return found
        if not plan:
            plan = list(rng.choice(_endings() if rng.random() < 0.4 + step / 80 else _pieces()))
        bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
        token = plan.pop(0)
        if not bits[token]:
            plan, legal = [], np.flatnonzero(bits)
            short = (
                legal[[len(demo_tokenizer().token_bytes(each)) <= 2 for each in legal.tolist()]]
                if len(legal) > 50
                else legal
            )
            token = int(rng.choice(short.tolist() or legal.tolist()))
        if token in demo_tokenizer().eos_ids:
            return found
        assert matcher.advance(token)
        found.append(token)
    return None


def hostile_text(rng, *, added=True):
    """A text with tags and code that a call can hold; without `added`, none of the tags is a token."""
    while True:
        text = "".join(rng.choices([*TAGS, *WORDS], k=rng.randint(0, 6)))
        ends = r"</parameter>\s*(<parameter=|</function>|</tool_call>)|</function>\s*</tool_call>|<parameter=(path|q|n)>"
        ends += r"|[ \t]*</tool_call>"
        after_tag = re.search(r"(tool_call|think)>\s*(</parameter>|</function>|<parameter=)", text)
        if (
            re.search(f"^({ends})", f"{text}\n</parameter>", re.MULTILINE) is None
            and after_tag is None
            and (added or not re.search("tool_call>|think>", text))
        ):
            return text
