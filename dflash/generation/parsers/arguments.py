"""Check of the arguments of a call that no tag marks as one."""

import json
from collections.abc import Mapping

from dflash.generation.parsers.schema import deref
from dflash.json_types import JsonMapping, JsonObject

_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
    "number": (int, float),
}
_CHECKED = {"type", "const", "enum", "required", "properties", "additionalProperties", "items"}
_CHECKED |= {"anyOf", "oneOf", "allOf", "$ref"}
_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
_NOTES |= {"$defs", "definitions", "$schema", "$id", "$comment"}

_CHECKS = 16
"""Checks of a value by a schema for each character of the arguments: references within `anyOf` could multiply them."""


def fitting(text: str, schema: object, *, strict: bool = False) -> bool:
    """Return True if a text is a JSON object that a schema of parameters accepts.

    schema: ``type``, ``enum``, ``const``, ``required``, ``properties``, ``additionalProperties``, ``items``, ``anyOf``,
        ``oneOf``, ``allOf`` and ``$ref`` are checked.
    strict: schemas with other keywords accept nothing, and parameters must be declared. Otherwise the rest does not count.

    A schema whose references multiply, so that it takes far more checks than the text has characters, accepts nothing.
    """
    try:
        value = json.loads(text)
        return isinstance(value, dict) and _Check(schema, strict, _CHECKS * (len(text) + 100)).fits(
            value, schema, is_top=True
        )
    except (ValueError, RecursionError):
        return False


class _Check:
    def __init__(self, root: object, strict: bool, n_checks: int) -> None:
        self._root, self._strict, self._left = root, strict, n_checks

    def fits(self, value: object, schema: object, *, is_top: bool = False) -> bool:
        self._left -= 1
        if self._left < 0:
            raise ValueError("references of the schema multiply")
        schema = deref(schema, self._root)
        if not isinstance(schema, Mapping):
            return schema is not False
        if self._strict and not {*schema} <= _CHECKED | _NOTES:
            return False
        listed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(listed, list | tuple) and not any(_equal(value, each) for each in listed):
            return False
        kinds = schema.get("type")
        if not any(_is(value, kind) for kind in (kinds if isinstance(kinds, list | tuple) else [kinds])):
            return False
        if not self._combined(value, schema):
            return False
        if isinstance(value, dict):
            return self._object(value, schema, is_top=is_top)
        return not isinstance(value, list) or all(self.fits(each, schema.get("items", True)) for each in value)

    def _combined(self, value: object, schema: JsonMapping) -> bool:
        for key in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(key)
            if not isinstance(parts, list | tuple) or not parts:
                continue
            n = sum(self.fits(value, part) for part in parts)
            if n < (len(parts) if key == "allOf" else 1) or (key == "oneOf" and self._strict and n > 1):
                return False
        return True

    def _object(self, value: JsonObject, schema: JsonMapping, *, is_top: bool) -> bool:
        properties, required, others = (schema.get(key) for key in ("properties", "required", "additionalProperties"))
        declared: JsonMapping = properties if isinstance(properties, Mapping) else {}
        if isinstance(required, list | tuple) and not all(key in value for key in required if isinstance(key, str)):
            return False
        if others is None:
            others = not (self._strict and is_top)
        return all(self.fits(each, declared.get(key, others)) for key, each in value.items())


def _is(value: object, kind: object) -> bool:
    """Return True if a value is of a type, whose name may be in any case; an unknown type accepts every value."""
    name = kind.lower() if isinstance(kind, str) else None
    if name == "integer":
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value // 1
    types = _TYPES.get(name) if name is not None else None
    return types is None or (isinstance(value, types) and (name == "boolean" or not isinstance(value, bool)))


def _equal(value: object, other: object) -> bool:
    return isinstance(value, bool) == isinstance(other, bool) and value == other
