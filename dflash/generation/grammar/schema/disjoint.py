"""Proof that at most one of several schemas accepts a value."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from dflash.generation.parsers.schema import deref
from dflash.json_types import JsonMapping

MAX_PAIRED = 64
"""Most schemas that are compared in pairs."""


def are_disjoint(options: Sequence[object], root: object) -> bool:
    """Return True if types, constants or a required property tell all schemas apart."""
    if len(options) > MAX_PAIRED:
        return False
    found = [deref(option, root) for option in options]
    return all(_differ(first, second, root, 4) for first, second in combinations(found, 2))


def _differ(first: object, second: object, root: object, depth: int) -> bool:
    if first is False or second is False:
        return True
    if not isinstance(first, Mapping) or not isinstance(second, Mapping) or depth == 0:
        return False
    types, others = _types(first), _types(second)
    if types is not None and others is not None and not _meet(types, others):
        return True
    values, other_values = _values(first), _values(second)
    if values is not None and other_values is not None and not any(_same(a, b) for a in values for b in other_values):
        return True
    return types == others == {"object"} and _differ_in_properties(first, second, root, depth)


def _differ_in_properties(first: JsonMapping, second: JsonMapping, root: object, depth: int) -> bool:
    known, other = first.get("properties"), second.get("properties")
    if not isinstance(known, Mapping) or not isinstance(other, Mapping):
        return False
    required, needed = set(_list(first, "required")), set(_list(second, "required"))
    for key in required & needed & set(known) & set(other):
        if _differ(deref(known[key], root), deref(other[key], root), root, depth - 1):
            return True
    closed, is_closed = first.get("additionalProperties") is False, second.get("additionalProperties") is False
    return bool((closed and needed - set(known)) or (is_closed and required - set(other)))


def _types(schema: JsonMapping) -> set[str] | None:
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else None
    if names is not None:
        return {name for name in names if isinstance(name, str)}
    values = _values(schema)
    return None if values is None else {_type_of(value) for value in values}


def _type_of(value: object) -> str:
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds = ((str, "string"), (int, "integer"), (float, "number"), (Mapping, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def _meet(first: set[str], second: set[str]) -> bool:
    numbers = {"integer", "number"}
    return bool(first & second) or bool(first & numbers and second & numbers)


def _values(schema: JsonMapping) -> list[object] | None:
    if "const" in schema:
        return [schema["const"]]
    return _list(schema, "enum") or None


def _list(schema: JsonMapping, key: str) -> list[object]:
    value = schema.get(key)
    return [each for each in value if key == "enum" or isinstance(each, str)] if isinstance(value, list | tuple) else []


def _same(first: object, second: object) -> bool:
    return isinstance(first, bool) == isinstance(second, bool) and first == second
