"""Parameters of a function: the objects that its schema describes, each as a list of parameters."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash.generation.grammar.schema.disjoint import are_disjoint
from dflash.generation.grammar.schema.policy import Policy, escaped
from dflash.generation.parsers.schema import pointed
from dflash.json_types import JsonMapping

MAX_SHAPES = 32
"""Most alternatives of the parameters of a function."""

_WHOLE = "not", "if", "dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "propertyNames"
_COUNTS = ("unevaluatedProperties", "minProperties", "maxProperties", "enum", "const", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, slots=True)
class ParameterSet:
    """One form of the parameters.

    properties: schemas and JSON pointers of the parameters, by key. A parameter has several if several parts describe it.
    required: parameters that must be given.
    additional: schema of other parameters; None if the schema does not speak of them.
    """

    properties: Mapping[str, tuple[tuple[Any, str], ...]] = field(default_factory=dict)
    required: tuple[str, ...] = ()
    additional: Any = None

    def merged(self, other: "ParameterSet") -> "ParameterSet":
        """Return the parameters that fit both."""
        properties = dict(self.properties)
        for key, parts in other.properties.items():
            properties[key] = (*properties.get(key, ()), *(part for part in parts if part not in properties.get(key, ())))
        both = [each for each in (self.additional, other.additional) if each is not None]
        additional = None if not both else False if False in both else both[0]
        return ParameterSet(properties, tuple(dict.fromkeys((*self.required, *other.required))), additional)


def shapes_of(parameters: object, policy: Policy) -> list[ParameterSet]:
    """Return the forms of a function's parameters: more than one if ``anyOf`` or ``oneOf`` stands at the top."""
    return _Shapes(parameters, policy).of(parameters, "", ())


class _Shapes:
    def __init__(self, root: object, policy: Policy) -> None:
        self._root, self._policy = root, policy

    def of(self, schema: object, pointer: str, seen: tuple[str, ...]) -> list[ParameterSet]:
        if not isinstance(schema, Mapping):
            return [ParameterSet()]
        self._check(schema, pointer)
        found = [self._own(schema, pointer)]
        for parts in self._conjuncts(schema, pointer, seen):
            found = [one.merged(other) for one in found for other in parts]
            if len(found) > MAX_SHAPES:
                self._policy.give_up(pointer, "anyOf", f"the parameters have more than {MAX_SHAPES} forms")
                found = found[:1]
        return found

    def _own(self, schema: JsonMapping, pointer: str) -> ParameterSet:
        properties, required = schema.get("properties"), schema.get("required")
        for keyword, value, kinds in (("properties", properties, Mapping), ("required", required, list | tuple)):
            if value is not None and not isinstance(value, kinds):
                self._policy.give_up(pointer, keyword, "it must be an object" if kinds is Mapping else "it must be an array")
        if isinstance(required, list | tuple) and not all(isinstance(key, str) for key in required):
            self._policy.give_up(pointer, "required", "it must be an array of strings")
        known = properties if isinstance(properties, Mapping) else {}
        names = [key for key in required if isinstance(key, str)] if isinstance(required, list | tuple) else []
        parts = {key: ((part, f"{pointer}/properties/{escaped(key)}"),) for key, part in known.items()}
        return ParameterSet(parts, tuple(dict.fromkeys(names)), schema.get("additionalProperties"))

    def _conjuncts(self, schema: JsonMapping, pointer: str, seen: tuple[str, ...]) -> Iterator[list[ParameterSet]]:
        """Yield the alternatives of each part that the parameters must fit beside the schema's own."""
        reference = schema.get("$ref")
        if isinstance(reference, str):
            target = pointed(self._root, reference)
            if reference in seen or not isinstance(target, Mapping | bool):
                self._policy.give_up(pointer, "$ref", f"{reference!r:.60} names no part of the schema")
            else:
                yield self.of(target, reference.removeprefix("#"), (*seen, reference))
        for i, part in enumerate(_list(schema, "allOf")):
            yield self.of(part, f"{pointer}/allOf/{i}", seen)
        for keyword in ("anyOf", "oneOf"):
            options = _list(schema, keyword)
            if keyword == "oneOf" and options and not are_disjoint(options, self._root):
                self._policy.give_up(pointer, keyword, "its parts may overlap")
            if options:
                yield [shape for i, each in enumerate(options) for shape in self.of(each, f"{pointer}/{keyword}/{i}", seen)]

    def _check(self, schema: JsonMapping, pointer: str) -> None:
        """Give up keywords that concern the parameters as a whole, unless they have no effect."""
        n_required = len(_list(schema, "required"))
        properties = schema.get("properties")
        n_known = len(properties) if isinstance(properties, Mapping) else 0
        is_closed = schema.get("additionalProperties") in (None, False)
        for keyword in (*_WHOLE, *_COUNTS):
            value = schema.get(keyword)
            is_idle = (
                value is None
                or (value == {} and keyword.startswith(("dep", "pattern", "property", "unevaluated")))
                or (keyword == "propertyNames" and (value is True or value == {"type": "string"}))
                or (keyword == "if" and not {"then", "else"} & set(schema))
                or (keyword == "minProperties" and isinstance(value, int) and value <= n_required)
                or (keyword == "maxProperties" and isinstance(value, int) and value >= n_known and is_closed)
                or (keyword == "unevaluatedProperties" and (value is True or not self._has_parts(schema)))
                or (keyword == "not" and value is False)
            )
            if not is_idle:
                self._policy.give_up(pointer, keyword)

    @staticmethod
    def _has_parts(schema: JsonMapping) -> bool:
        return bool({"$ref", "allOf", "anyOf", "oneOf"} & set(schema))


def _list(schema: JsonMapping, key: str) -> Sequence[Any]:
    value = schema.get(key)
    return value if isinstance(value, list | tuple) else ()
