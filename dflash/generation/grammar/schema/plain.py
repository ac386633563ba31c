"""Schemas reduced to the keywords that the grammar library enforces."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from dflash.generation.grammar.schema.disjoint import are_disjoint
from dflash.generation.grammar.schema.formats import FORMATS
from dflash.generation.grammar.schema.patterns import UnsupportedPattern, searched
from dflash.generation.grammar.schema.policy import Policy, escaped
from dflash.generation.grammar.schema.types import types_of
from dflash.generation.parsers.schema import is_circle, pointed
from dflash.json_types import JsonMapping, JsonObject

MAX_JSON_LENGTH = 1 << 20
"""Largest length of a JSON string that is enforced."""

_MAX_BOUND = 1e15
"""Largest bound of a number that is not whole; the library writes it out in digits."""

Schema = JsonObject | bool


class PlainSchemas:
    """Reduces schemas of one root. Parts that references name are shared: each is reduced once."""

    def __init__(self, root: object, policy: Policy) -> None:
        self._root, self._policy = root, policy
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, str, object]] = []
        self._shared: dict[str, Schema] = {}
        self._sizes: dict[str, int] = {}
        self._uses: dict[str, tuple[str, ...]] = {}

    def reduced(self, schema: object, pointer: str) -> Schema:
        """Return a schema without the shared parts that it refers to; see `with_shared`."""
        found = self._part(schema, pointer)
        while self._waiting:
            name, reference, target = self._waiting.pop()
            part = self._part(target, reference)
            self._shared[name] = part
            self._sizes[name], self._uses[name] = len(json.dumps(part)), tuple(dict.fromkeys(_references(part)))
        return found

    def size(self, schema: Schema) -> int:
        """Return the characters of `with_shared`, without making it."""
        return len(json.dumps(schema)) + sum(self._sizes[name] for name in self._reached(schema))

    def with_shared(self, schema: Schema) -> Schema:
        """Return a reduced schema together with the shared parts that it leads to."""
        names = self._reached(schema)
        if not names or isinstance(schema, bool):
            return schema
        return {**schema, "$defs": {name: self._shared[name] for name in names}}

    def _reached(self, schema: Schema) -> list[str]:
        waiting, found = list(_references(schema)), dict[str, None]()
        while waiting:
            name = waiting.pop()
            if name not in found:
                found[name] = None
                waiting += self._uses[name]
        return list(found)

    def _part(self, schema: object, pointer: str) -> Schema:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            self._policy.give_up(pointer, "", f"{schema!r:.60} is no schema")
            return {}
        found: JsonObject = {}
        types = types_of(schema, pointer, self._policy)
        if types is not None:
            found["type"] = types[0] if len(types) == 1 else list(types)
        for keyword in sorted(schema, key=_LAST.__contains__):
            reduce, value = _REDUCERS.get(keyword), schema[keyword]
            if reduce is not None and value is not None:
                more = reduce(self, schema, value, keyword, pointer)
                all_of = [*found.get("allOf", ()), *more.get("allOf", ())]
                found |= more | ({"allOf": all_of} if all_of else {})
        if "const" in schema:
            found["const"] = schema["const"]
        return found

    def _parts(self, value: Any, keyword: str, pointer: str) -> list[Schema]:
        return [self._part(each, f"{pointer}/{keyword}/{i}") for i, each in enumerate(value)]

    def _is_list(self, value: object, keyword: str, pointer: str) -> bool:
        """Return True for a list of at least one thing; give up others."""
        if isinstance(value, list | tuple) and value:
            return True
        if keyword not in ("allOf", "required", "prefixItems") or not isinstance(value, list | tuple):
            self._policy.give_up(pointer, keyword, "it must be an array of at least one value")
        return False

    def _reference(self, _: object, value: Any, keyword: str, pointer: str) -> JsonObject:
        if value not in self._names if isinstance(value, str) else True:
            target = pointed(self._root, value) if isinstance(value, str) else None
            if not isinstance(target, Mapping | bool):
                self._policy.give_up(pointer, keyword, f"{value!r:.60} names no part of the schema; it does not exist")
                return {}
            if not self._policy.strict and self._policy.is_tool and is_circle(self._root, value):
                self._policy.give_up(pointer, keyword, "it refers only to itself")
                return {}
            self._names[value] = name = f"d{len(self._names)}"
            self._waiting.append((name, value.removeprefix("#"), target))
        return {"$ref": f"#/$defs/{self._names[value]}"}

    def _enum(self, _: object, value: Any, keyword: str, pointer: str) -> JsonObject:
        return {keyword: list(value)} if self._is_list(value, keyword, pointer) else {}

    def _group(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        return {keyword: self._parts(value, keyword, pointer)} if self._is_list(value, keyword, pointer) else {}

    def _one_of(self, schema: JsonMapping, value: Any, keyword: str, pointer: str) -> JsonObject:
        if not self._is_list(value, keyword, pointer):
            return {}
        if not are_disjoint(value, self._root):
            self._policy.give_up(pointer, keyword, "its parts may overlap")
        options = self._parts(value, keyword, pointer)
        return {"allOf": [{"anyOf": options}]} if "anyOf" in schema else {"anyOf": options}

    def _length(self, _: object, value: Any, keyword: str, pointer: str) -> JsonObject:
        most = MAX_JSON_LENGTH if keyword in ("minLength", "maxLength") else 1 << 30
        whole = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value == int(value)
        if not whole or value > most:
            self._policy.give_up(pointer, keyword, "" if whole else "it must be a whole number of at least 0")
            return {}
        return {keyword: int(value)} if value or keyword.startswith("max") else {}

    def _pattern(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        converted = self._converted(value, keyword, pointer)
        return {} if converted is None else {"allOf": [{"pattern": converted}]}

    def _converted(self, pattern: Any, keyword: str, pointer: str) -> str | None:
        try:
            return f"^(?:{searched(pattern)})$"
        except (UnsupportedPattern, TypeError) as error:
            self._policy.give_up(pointer, keyword, f"it holds {error}")
            return None

    def _format(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        if "string" not in (types_of(schema, pointer, self._policy) or ("string",)):
            return {}  # of a number: an annotation
        if isinstance(value, str) and value in FORMATS:
            return {"allOf": [{"pattern": f"^(?:{searched(f'^(?:{FORMATS[value]})$')})$"}]}
        self._policy.give_up(pointer, keyword, f"{value!r:.60} is not a known format")
        return {}

    def _number(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        if isinstance(value, bool) and keyword.startswith("exclusive"):  # the form of draft 4
            plain = "minimum" if keyword == "exclusiveMinimum" else "maximum"
            return self._number({}, schema[plain], keyword, pointer) if value and schema.get(plain) is not None else {}
        if keyword in ("minimum", "maximum") and schema.get(f"exclusive{keyword.capitalize()}") is True:
            return {}
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._policy.give_up(pointer, keyword, "it must be a number")
            return {}
        if keyword != "multipleOf" and abs(value) >= 1.7e308:
            return {}  # every number that a program can hold
        if (keyword == "multipleOf" and value <= 0) or (
            abs(value) > _MAX_BOUND and "integer" not in str(schema.get("type"))
        ):
            self._policy.give_up(pointer, keyword, f"{value:g} is too large" if value > 0 else "it must be above 0")
            return {}
        return {keyword: value}

    def _items(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        if isinstance(value, list | tuple):  # a tuple before 2020-12
            more = schema.get("additionalItems", True)
            rest = {} if more is True or more is None else {"items": self._part(more, f"{pointer}/additionalItems")}
            return {"prefixItems": self._parts(value, keyword, pointer), **rest}
        return {keyword: self._part(value, f"{pointer}/{keyword}")}

    def _properties(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        if not isinstance(value, Mapping):
            self._policy.give_up(pointer, keyword, "it must be an object")
            return {}
        return {keyword: {key: self._part(each, f"{pointer}/{keyword}/{escaped(key)}") for key, each in value.items()}}

    def _pattern_properties(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        found = {}
        for key, each in value.items() if isinstance(value, Mapping) else ():
            converted = self._converted(key, keyword, pointer)
            if converted is not None:
                found[converted] = self._part(each, f"{pointer}/{keyword}/{escaped(key)}")
        return {keyword: found} if found else {}

    def _required(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            self._policy.give_up(pointer, keyword, "it must be an array of strings")
            return {}
        return {keyword: list(dict.fromkeys(value))} if value else {}

    def _additional(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        return {} if value is True else {keyword: self._part(value, f"{pointer}/{keyword}")}

    def _property_count(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        known, required = schema.get("properties") or {}, schema.get("required") or ()
        if keyword == "minProperties" and isinstance(value, int) and value <= len(required):
            return {}
        is_closed = schema.get("additionalProperties") is False
        if keyword == "maxProperties" and isinstance(value, int) and is_closed and value >= len(known):
            return {}
        if isinstance(value, int) and set(known) <= set(required):
            return {keyword: value}
        self._policy.give_up(pointer, keyword, "some properties are optional")
        return {}

    def _property_names(self, schema: JsonMapping, value: Any, keyword: str, pointer: str) -> JsonObject:
        if value is True or (isinstance(value, Mapping) and not set(value) - {"type", "title", "description"}):
            return {}
        simple = isinstance(value, Mapping) and not schema.get("properties") and not schema.get("patternProperties")
        rest = self._part(schema.get("additionalProperties", True), f"{pointer}/additionalProperties") if simple else True
        if simple and set(value) <= {"type", "enum"} and isinstance(value.get("enum"), list):
            names = [each for each in value["enum"] if isinstance(each, str)]
            return {"properties": dict.fromkeys(names, rest), "additionalProperties": False}
        if simple and set(value) <= {"type", "pattern"} and isinstance(value.get("pattern"), str):
            converted = self._converted(value["pattern"], "pattern", f"{pointer}/{keyword}")
            return {"patternProperties": {converted: rest}, "additionalProperties": False} if converted else {}
        self._policy.give_up(pointer, keyword)
        return {}

    def _not(self, _: object, value: object, keyword: str, pointer: str) -> JsonObject:
        if value is not False:
            self._policy.give_up(pointer, keyword)
        return {}

    def _unevaluated(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        applicators = {"$ref", "allOf", "anyOf", "oneOf", "if", "not", "additionalProperties", "dependentSchemas"}
        if value is True or value == {}:
            return {}
        if keyword == "unevaluatedProperties" and not applicators & set(schema):
            return {"additionalProperties": self._part(value, f"{pointer}/{keyword}")}
        self._policy.give_up(pointer, keyword)
        return {}

    def _unsupported(self, schema: JsonMapping, value: object, keyword: str, pointer: str) -> JsonObject:
        is_idle = (
            (keyword == "uniqueItems" and value is False)
            or (keyword.startswith("dep") and value == {})
            or (keyword == "if" and all(schema.get(part, True) in ({}, True) for part in ("then", "else")))
            or (keyword in ("minContains", "maxContains") and "contains" not in schema)
        )
        if not is_idle:
            self._policy.give_up(pointer, keyword)
        return {}


def _references(schema: object) -> Iterator[str]:
    """Yield the names of the shared parts that a reduced schema refers to directly."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            reference = part.get("$ref")
            if isinstance(reference, str):
                yield reference.removeprefix("#/$defs/")
            waiting += (each for key, each in part.items() if key not in ("const", "enum"))
        elif isinstance(part, list):
            waiting += part


_LAST = "propertyNames", "unevaluatedProperties"
"""Keywords that may replace `additionalProperties`."""

_Reducer = Callable[[PlainSchemas, JsonMapping, object, str, str], JsonObject]
_REDUCERS: dict[str, _Reducer] = {
    "$ref": PlainSchemas._reference,
    "enum": PlainSchemas._enum,
    **dict.fromkeys(("allOf", "anyOf"), PlainSchemas._group),
    "oneOf": PlainSchemas._one_of,
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), PlainSchemas._length),
    "pattern": PlainSchemas._pattern,
    "format": PlainSchemas._format,
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), PlainSchemas._number),
    "items": PlainSchemas._items,
    "prefixItems": PlainSchemas._group,
    "properties": PlainSchemas._properties,
    "patternProperties": PlainSchemas._pattern_properties,
    "required": PlainSchemas._required,
    "additionalProperties": PlainSchemas._additional,
    **dict.fromkeys(("minProperties", "maxProperties"), PlainSchemas._property_count),
    "propertyNames": PlainSchemas._property_names,
    "not": PlainSchemas._not,
    **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), PlainSchemas._unevaluated),
    **dict.fromkeys(("if", "uniqueItems", "contains", "minContains", "maxContains"), PlainSchemas._unsupported),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), PlainSchemas._unsupported),
    **dict.fromkeys(("$dynamicRef", "$recursiveRef"), PlainSchemas._unsupported),
}
