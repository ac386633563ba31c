"""Texts of scalar values, as regular expressions made from a schema.

Regular expressions can be combined by and, or and not, so every keyword that concerns strings is enforced exactly, or given
up. An expression is written as a terminal of Lark.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from dflash.generation.grammar.lark import quoted
from dflash.generation.grammar.schema.formats import FORMATS
from dflash.generation.grammar.schema.patterns import UnsupportedPattern, searched
from dflash.generation.grammar.schema.policy import Policy
from dflash.generation.grammar.schema.types import types_of
from dflash.generation.parsers.schema import is_circle, pointed
from dflash.json_types import JsonMapping

MAX_LENGTHS = {"minLength": 1024, "maxLength": 10_000}
"""Largest lengths that are enforced on a text: each character is a state of the lexer."""

INTEGER = r"/-?(?:0|[1-9][0-9]*)(?:\.0+)?/"
_NUMBERS = "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"

ALL = {
    "string": "/(?s:.*)/",
    "null": "/null|NULL|Null|None/",
    "boolean": "/true|false|True|False/",
    "number": r"/-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+\-]?[0-9]+)?/",
}
"""All texts of a kind of scalar, as the parser of calls reads them."""

Expression = str | None
"""A terminal of Lark; None if no text matches."""


class _Lost(Exception):
    """A keyword under a negation can't be enforced exactly."""


class Literals:
    """Makes expressions for the values of one schema and what it refers to."""

    def __init__(self, root: object, policy: Policy, prefix: str) -> None:
        self._root, self._policy, self._prefix = root, policy, prefix
        self._known: dict[tuple[str, str], Expression] = {}
        self._n_negated = 0
        self.rules: list[str] = []

    def fitting(self, parts: Iterable[tuple[object, str]], kind: str) -> Expression:
        """Return the texts of a kind of scalar that fit several schemas, each with its JSON pointer."""
        return _all([self.of(schema, pointer, kind) for schema, pointer in parts], kind)

    def of(self, schema: object, pointer: str, kind: str) -> Expression:
        """Return the texts of a kind of scalar (a key of `ALL`) that a schema allows."""
        if not isinstance(schema, Mapping):
            return None if schema is False else ALL[kind]
        types = types_of(schema, pointer, self._policy)
        if types is not None and kind not in types and (kind != "number" or "integer" not in types):
            return None
        parts: list[Expression] = [INTEGER] if kind == "number" and types and "number" not in types else []
        if "const" in schema:
            parts.append(_listed([schema["const"]], kind))
        if isinstance(schema.get("enum"), list | tuple) and schema["enum"]:
            parts.append(_listed(schema["enum"], kind))
        parts += self._string(schema, pointer) if kind == "string" else self._number(schema, pointer, kind)
        parts += self._combined(schema, pointer, kind)
        return _all(parts, kind)

    def _string(self, schema: JsonMapping, pointer: str) -> Iterable[Expression]:
        low, high = _length(schema.get("minLength"), 0), _length(schema.get("maxLength"), None)
        for keyword, length in (("minLength", low), ("maxLength", high)):
            if length is not None and length > MAX_LENGTHS[keyword]:
                self._give_up(pointer, keyword, f"at most {MAX_LENGTHS[keyword]} characters are counted")
        low = low if low is not None and low <= MAX_LENGTHS["minLength"] else 0
        high = high if high is not None and high <= MAX_LENGTHS["maxLength"] else None
        if high is not None and high < low:
            yield None
        elif low or high is not None:
            yield f"/(?s:.{{{low},{'' if high is None else high}}})/"
        pattern, name = schema.get("pattern"), schema.get("format")
        if isinstance(pattern, str):
            yield self._pattern(pattern, pointer)
        if isinstance(name, str) and name in FORMATS and not self._n_negated:
            yield f"/{searched(f'^(?:{FORMATS[name]})$')}/"
        elif name is not None:
            self._give_up(pointer, "format", f"{name!r:.60} is not a known format")

    def _pattern(self, pattern: str, pointer: str) -> Expression:
        try:
            return f"/{searched(pattern)}/"
        except UnsupportedPattern as error:
            self._give_up(pointer, "pattern", f"it holds {error}")
            return ALL["string"]

    def _number(self, schema: JsonMapping, pointer: str, kind: str) -> Iterable[Expression]:
        for keyword in _NUMBERS if kind == "number" else ():
            if schema.get(keyword) not in (None, False):
                self._give_up(pointer, keyword, "the value may be a string, too")
        return ()

    def _combined(self, schema: JsonMapping, pointer: str, kind: str) -> Iterable[Expression]:
        if isinstance(reference := schema.get("$ref"), str):
            yield self._referred(reference, pointer, kind)
        for keyword in ("allOf", "anyOf", "oneOf"):
            options = schema.get(keyword)
            if isinstance(options, list | tuple) and options:
                yield self._group(
                    keyword, [(each, f"{pointer}/{keyword}/{i}") for i, each in enumerate(options)], pointer, kind
                )
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                self._give_up(pointer, keyword)
        if "not" in schema:
            yield self._negated(schema["not"], pointer, kind)
        if "if" in schema and ("then" in schema or "else" in schema):
            yield self._conditional(schema, pointer, kind)

    def _group(self, keyword: str, options: list[tuple[object, str]], pointer: str, kind: str) -> Expression:
        found = [self.of(each, where, kind) for each, where in options]
        some = [each for each in dict.fromkeys(found) if each is not None]
        if keyword == "allOf":
            return _all(found, kind)
        if keyword == "anyOf" or len([each for each in found if each is not None]) < 2:
            return _any(some)
        if all(_is_list(each, kind) for each, _ in options):
            return _any(some)
        self._n_negated += 1
        try:
            exact = [self.of(each, where, kind) for each, where in options]
        except _Lost:
            exact = None
        finally:
            self._n_negated -= 1
        if exact is None:
            self._give_up(pointer, keyword, "its parts may overlap")
            return _any(some)
        one = [
            _all([each, *(_not(other, kind) for j, other in enumerate(exact) if j != i)], kind)
            for i, each in enumerate(exact)
        ]
        return _any([each for each in one if each is not None])

    def _negated(self, schema: object, pointer: str, kind: str) -> Expression:
        self._n_negated += 1
        try:
            return _not(self.of(schema, f"{pointer}/not", kind), kind)
        except _Lost:
            pass
        finally:
            self._n_negated -= 1
        self._give_up(pointer, "not")
        return ALL[kind]

    def _conditional(self, schema: JsonMapping, pointer: str, kind: str) -> Expression:
        self._n_negated += 1
        try:
            holds = self.of(schema["if"], f"{pointer}/if", kind)
        except _Lost:
            holds = ""
        finally:
            self._n_negated -= 1
        if holds == "":
            self._give_up(pointer, "if")
            return ALL[kind]
        then, other = (self.of(schema.get(keyword, True), f"{pointer}/{keyword}", kind) for keyword in ("then", "else"))
        both = _all([holds, then], kind), _all([_not(holds, kind), other], kind)
        return _any([each for each in both if each is not None])

    def _referred(self, reference: str, pointer: str, kind: str) -> Expression:
        known = (reference, f"{kind}{self._n_negated > 0}")
        if known not in self._known:
            self._known[known] = None  # a part that refers only to itself matches nothing
            target = pointed(self._root, reference)
            if not isinstance(target, Mapping | bool):
                self._give_up(pointer, "$ref", f"{reference!r:.60} names no part of the schema")
                target = True
            elif is_circle(self._root, reference) and not self._policy.strict:
                self._give_up(pointer, "$ref", "it refers only to itself")
                target = True
            found = self.of(target, reference.removeprefix("#"), kind)
            if found is not None and len(found) > 40:
                name = f"{self._prefix}_T{len(self.rules)}"
                self.rules.append(f"{name}: {found}")
                found = name
            self._known[known] = found
        return self._known[known]

    def _give_up(self, pointer: str, keyword: str, reason: str = "") -> None:
        if self._n_negated:
            raise _Lost
        self._policy.give_up(pointer, keyword, reason)


def _listed(values: Iterable[object], kind: str) -> Expression:
    """Return the texts of the values of a kind."""
    texts: dict[str, None] = {}
    for value in values:
        if kind == "string" and isinstance(value, str):
            texts[value] = None
        elif kind == "null" and value is None:
            return ALL["null"]
        elif kind == "boolean" and isinstance(value, bool):
            texts |= {json.dumps(value): None, str(value): None}
        elif kind == "number" and isinstance(value, int | float) and not isinstance(value, bool):
            texts[json.dumps(value)] = None
    return _any(map(quoted, texts))


def _is_list(schema: object, kind: str) -> bool:
    """Return True for a schema that lists different values of a kind: such alternatives seldom overlap."""
    return isinstance(schema, Mapping) and "const" in schema and kind == "string"


def _length(value: Any, default: int | None) -> int | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and value >= 0 and value == int(value) else default


def _all(parts: Iterable[Expression], kind: str) -> Expression:
    wanted = dict.fromkeys(part for part in parts if part != ALL[kind])
    if None in wanted:
        return None
    found = [part for part in wanted if part is not None]
    return f"({' & '.join(found)})" if len(found) > 1 else found[0] if found else ALL[kind]


def _any(parts: Iterable[str]) -> Expression:
    found = list(dict.fromkeys(parts))
    return f"({' | '.join(found)})" if len(found) > 1 else found[0] if found else None


def _not(expression: Expression, kind: str) -> Expression:
    if expression is None:
        return ALL[kind]
    return None if expression == ALL[kind] else f"({ALL[kind]} & ~{expression})"


def may_be(schema: object, root: object, kinds: Collection[str], depth: int = 8) -> bool:
    """Return False if types and listed values exclude all of some kinds."""
    if not isinstance(schema, Mapping) or not depth:
        return schema is not False
    given = schema.get("type")
    names = [given] if isinstance(given, str) else given if isinstance(given, list | tuple) else None
    if names is not None and not any(isinstance(name, str) and name.lower() in kinds for name in names):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    structured = {"array": list | tuple, "object": Mapping}
    if isinstance(values, list | tuple) and values:
        return any(isinstance(value, structured[kind]) for value in values for kind in kinds)
    if isinstance(reference := schema.get("$ref"), str) and not may_be(pointed(root, reference), root, kinds, depth - 1):
        return False
    for keyword, wanted in (("allOf", all), ("anyOf", any), ("oneOf", any)):
        options = schema.get(keyword)
        given = options if isinstance(options, list | tuple) and options else [True]
        if not wanted(may_be(option, root, kinds, depth - 1) for option in given):
            return False
    return True
