"""Types that a JSON schema accepts, and values of parameters written as text."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn
from urllib.parse import unquote

from dflash.json_types import JsonMapping

_BLANK = " \t\r\n"
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WORDS = {"true": True, "false": False, "True": True, "False": False} | dict.fromkeys(("null", "None", "NULL", "Null"))
_KINDS = frozenset(("null", "boolean", "integer", "number", "array", "object", "string"))
_SHAPES = {"properties": "object", "additionalProperties": "object", "items": "array", "prefixItems": "array"}
_TYPED = ("type", "const", "enum", "$ref", "anyOf", "oneOf", "allOf", *_SHAPES)
_MAX_CONSTANT = 400
"""Most characters of a number that is compared with the constants of a schema."""


class Member(NamedTuple):
    """One alternative of a schema.

    constants: the accepted values, if the schema lists them.
    """

    kinds: frozenset[str]
    constants: tuple[object, ...] | None = None

    def accepts(self, kind: str, literal: str) -> bool:
        """Return True if this alternative accepts a JSON literal of a kind other than string."""
        if kind not in self.kinds and not (kind == "integer" and "number" in self.kinds):
            return False
        if self.constants is None:
            return True
        if kind in ("integer", "number") and len(literal) > _MAX_CONSTANT:
            return False
        value = json.loads(literal, parse_constant=_refuse)
        return any(isinstance(each, bool) == isinstance(value, bool) and each == value for each in self.constants)


ANY = (Member(_KINDS),)
STRING = (Member(frozenset(("string",))),)


def members(schema: object, root: object) -> tuple[Member, ...]:
    """Return the alternatives of a schema.

    schema: JSON schema of a parameter. ``type``, ``enum``, ``const``, ``anyOf``, ``oneOf``, ``allOf`` and ``$ref`` are read.
    root: schema of all parameters, which references point into.
    Returns: A schema without a type accepts every type. Takes linear time in the size of the schemas.
    """
    found: list[Member] = []
    waiting, seen = [schema], set()
    while waiting:
        each = waiting.pop()
        reference = each.get("$ref") if isinstance(each, Mapping) else None
        if isinstance(reference, str):
            if reference not in seen:
                seen.add(reference)
                waiting.append(pointed(root, reference))
            continue
        inner = _alternatives(each)
        if inner:
            waiting += inner
        else:
            found.append(_member(each))
    return tuple(found) or ANY


def only_strings(alternatives: Sequence[Member]) -> bool:
    """Return True if every text is a string under these alternatives, so that it can be passed on as it is written."""
    return all(member.kinds == STRING[0].kinds for member in alternatives)


def coerce(text: str, alternatives: Sequence[Member]) -> str:
    """Convert the text of a parameter to JSON.

    text: value as the model wrote it.
    alternatives: types that the schema accepts; those other than string are tried first.
    Returns: JSON text. Literals are kept as written, so that ``1.0`` stays ``1.0``; Python's ``True``, ``False`` and
        ``None`` become JSON. A value of a wrong type is passed on: as the literal that it is, else as a string.
    """
    kind, literal = _parsed(text)
    if kind not in ("", "string") and any(member.accepts(kind, literal) for member in alternatives):
        return literal
    if not kind or any("string" in member.kinds for member in alternatives):
        return json.dumps(text, ensure_ascii=False)
    return literal


def is_circle(root: object, reference: str) -> bool:
    """Return True if a reference leads through references alone back to one of them: no value is meant."""
    seen = set()
    while reference not in seen:
        seen.add(reference)
        target = pointed(root, reference)
        following = target.get("$ref") if isinstance(target, Mapping) else None
        if not isinstance(following, str):
            return False
        reference = following
    return True


def deref(schema: object, root: object) -> object:
    """Follow the references of a schema."""
    seen = set()
    while isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str) and schema["$ref"] not in seen:
        seen.add(schema["$ref"])
        schema = pointed(root, schema["$ref"])
    return schema


def object_parts(root: object) -> list[JsonMapping]:
    """Return the parts of an object's schema: itself, and all that it refers to or combines."""
    found: list[JsonMapping] = []
    waiting, seen = [root], set()
    while waiting:
        part = waiting.pop(0)
        if not isinstance(part, Mapping):
            continue
        found.append(part)
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            waiting.append(pointed(root, reference))
        for key in ("allOf", "anyOf", "oneOf"):
            waiting += part[key] if isinstance(part.get(key), list | tuple) else ()
    return found


def pointed(root: object, reference: str) -> object:
    """Return the part of `root` that a JSON pointer such as ``#/$defs/Color`` names; None if there is none."""
    if not reference.startswith("#"):
        return None
    part = root
    for key in unquote(reference[1:]).split("/")[1:]:
        key = key.replace("~1", "/").replace("~0", "~")
        if isinstance(part, Mapping):
            part = part.get(key)
        elif isinstance(part, list) and key.isascii() and key.isdigit() and len(key) < 9 and int(key) < len(part):
            part = part[int(key)]
        else:
            return None
    return part


def _alternatives(schema: object) -> list[object]:
    """Return the schemas that a schema combines; empty if it is a simple one."""
    if not isinstance(schema, Mapping) or "const" in schema or "enum" in schema:
        return []
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key]
    parts = schema.get("allOf")
    if "type" in schema or not isinstance(parts, list):
        return []
    # constraints without a type, as minLength, would accept every type
    return [part for part in parts if isinstance(part, Mapping) and any(key in part for key in _TYPED)]


def _member(schema: object) -> Member:
    if not isinstance(schema, Mapping):
        return ANY[0]
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list | tuple) and values:
        return Member(frozenset(map(_kind_of, values)), tuple(values))
    kinds = schema.get("type")
    kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list | tuple) else []
    known = frozenset(kind.lower() for kind in kinds if isinstance(kind, str) and kind.lower() in _KINDS)
    shape = next((kind for key, kind in _SHAPES.items() if key in schema), None)
    return Member(known or (_KINDS if shape is None else frozenset((shape,))))


def _kind_of(value: object) -> str:
    for kind, types in (
        ("boolean", bool),
        ("number", int | float),
        ("string", str),
        ("object", Mapping),
        ("null", type(None)),
    ):
        if isinstance(value, types):
            return kind
    return "array"


def _parsed(text: str) -> tuple[str, str]:
    """Return the JSON type and literal of a text; two empty strings if the text is not JSON."""
    literal = text.strip(_BLANK)
    if literal in _WORDS:
        value = _WORDS[literal]
        return ("null" if value is None else "boolean"), json.dumps(value)
    number = _NUMBER.fullmatch(literal)
    if number is not None:
        whole = number[2] is None and not (number[1] or "").strip(".0")
        return ("integer" if whole else "number"), literal
    kind = {"[": "array", "{": "object", '"': "string"}.get(literal[:1], "")
    try:
        # floats, since Python bounds the digits of an int
        return (
            (kind, literal)
            if kind and json.loads(literal, parse_int=float, parse_constant=_refuse) is not None
            else ("", "")
        )
    except (ValueError, RecursionError):
        return "", ""


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
