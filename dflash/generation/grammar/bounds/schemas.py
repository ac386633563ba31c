"""Bounds of JSON schemas: levels, references, patterns, and parts that match nothing."""

from collections.abc import Iterator, Mapping

from dflash.errors import RequestError
from dflash.generation.grammar.bounds.graph import RuleGraph
from dflash.generation.grammar.bounds.patterns import check_pattern
from dflash.generation.grammar.limits import MAX_CHAIN, MAX_DEPTH, MAX_GRAMMAR_PARTS, MAX_KEY_PATTERNS, MAX_MULTIPLE
from dflash.json_types import JsonMapping, JsonObject

_EACH = ("properties", "patternProperties", "dependentSchemas")
_LISTS = ("prefixItems", "items")
_SINGLE = ("additionalProperties", "items", "additionalItems", "contains", "propertyNames", "not", "if", "then", "else")


def check_references(schema: object) -> None:
    """Check what a schema leads to by its references."""
    check_depth(schema)
    _Schema(schema).check()


def check_depth(schema: object) -> None:
    """Check the levels of arrays and objects as written."""
    level, depth = [schema] if isinstance(schema, Mapping | list | tuple) else [], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise RequestError(f"the schema has more than {MAX_DEPTH} levels of arrays and objects")
        nested = (each.values() if isinstance(each, Mapping) else each for each in level)
        level = [part for each in nested for part in each if isinstance(part, Mapping | list | tuple)]


class _Schema:
    def __init__(self, root: object) -> None:
        self._root, self._graph = root, RuleGraph()
        self._known: dict[int, int] = {}
        self._targets: JsonObject = {}
        self._waiting: list[tuple[int, JsonMapping, str]] = []
        self._entries: list[int] = []

    def check(self) -> None:
        root = self._node(self._root, "")
        self._entries.append(root)
        while self._waiting:
            self._read(*self._waiting.pop())
        graph = self._graph
        n = graph.longest_chain(root)
        if n > MAX_CHAIN:
            raise RequestError(f"references lead through {n} parts of the schema in a row, at most {MAX_CHAIN} are allowed")
        dead = graph.dead(inner=False)
        for node in self._entries:
            if node in dead:
                raise RequestError(f"{graph.labels[node] or '/'}: no value matches, since it refers only to itself")
        if root in graph.dead(inner=True):
            raise RequestError("no value of finite length matches, since a required part holds itself again")

    def _node(self, schema: object, pointer: str) -> int:
        if id(schema) in self._known and isinstance(schema, Mapping):
            return self._known[id(schema)]
        node = self._graph.add(pointer)
        if node >= MAX_GRAMMAR_PARTS:
            raise RequestError(f"the schema has more than {MAX_GRAMMAR_PARTS} parts that are schemas")
        if isinstance(schema, Mapping):
            self._known[id(schema)] = node
            self._waiting.append((node, schema, pointer))
        return node

    def _read(self, node: int, schema: JsonMapping, pointer: str) -> None:
        graph = self._graph
        for part, where in self._needed(schema, pointer):
            graph.link(node, self._node(part, where))
        for key in ("anyOf", "oneOf"):
            if isinstance(options := schema.get(key), list | tuple) and options:
                choice = graph.add(f"{pointer}/{key}", any_of=True, weight=0)
                graph.link(node, choice)
                for i, option in enumerate(options):
                    graph.link(choice, self._node(option, f"{pointer}/{key}/{i}"))
        self._read_inner(node, schema, pointer)
        self._check_values(schema, pointer)

    def _needed(self, schema: JsonMapping, pointer: str) -> Iterator[tuple[object, str]]:
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            yield self._target(reference), reference[1:] or "/"
        if isinstance(parts := schema.get("allOf"), list | tuple):
            yield from ((part, f"{pointer}/allOf/{i}") for i, part in enumerate(parts))

    def _read_inner(self, node: int, schema: JsonMapping, pointer: str) -> None:
        graph, required = self._graph, schema.get("required", ())
        needed = set(required) if schema.get("type") == "object" and _are_strings(required) else set()
        n_items = schema.get("minItems", 0) if schema.get("type") == "array" else 0
        n_needed = n_items if isinstance(n_items, int) else 0
        for key, part in _parts(schema):
            inner = self._node(part, f"{pointer}/{key}")
            name, _, place = key.partition("/")
            if name == "properties":
                wanted = place.replace("~1", "/").replace("~0", "~") in needed
            else:
                wanted = (name == "items" and n_needed > 0) if not place else name == "prefixItems" and int(place) < n_needed
            (graph.link_inner if wanted else graph.link_loose)(node, inner)
            if name in ("properties", "patternProperties", "additionalProperties", "items", "prefixItems"):
                self._entries.append(inner)

    def _check_values(self, schema: JsonMapping, pointer: str) -> None:
        patterns = schema.get("patternProperties")
        patterns = patterns if isinstance(patterns, Mapping) else {}
        if len(patterns) > MAX_KEY_PATTERNS:
            message = f"{pointer}/patternProperties: has {len(patterns)} patterns, at most {MAX_KEY_PATTERNS} are allowed"
            raise RequestError(message)
        named = [("pattern", schema.get("pattern")), *(("patternProperties", each) for each in patterns)]
        for key, pattern in named:
            if isinstance(pattern, str):
                try:
                    check_pattern(pattern)
                except RequestError as error:
                    raise RequestError(f"{pointer}/{key}: {error}") from None
        multiple = schema.get("multipleOf")
        if isinstance(multiple, int | float) and abs(multiple) > MAX_MULTIPLE:
            raise RequestError(f"{pointer}/multipleOf: is {multiple:g}, at most {MAX_MULTIPLE} is allowed")

    def _target(self, reference: str) -> object:
        """Return what a reference within the schema means; True, which matches anything, if it means nothing."""
        if reference not in self._targets:
            found = self._root
            for name in reference[1:].split("/")[1:]:
                name = name.replace("~1", "/").replace("~0", "~")
                if isinstance(found, Mapping):
                    found = found.get(name, True)
                elif isinstance(found, list) and name in map(str, range(len(found))):
                    found = found[int(name)]
                else:
                    found = True
            self._targets[reference] = found
        return self._targets[reference]


def _parts(schema: JsonMapping) -> Iterator[tuple[str, object]]:
    """Yield the schemas within one and their relative pointers, without those that match the same value."""
    for name in _EACH:
        if isinstance(inner := schema.get(name), Mapping):
            yield from ((f"{name}/{_escaped(str(key))}", part) for key, part in inner.items())
    for name in _LISTS:
        if isinstance(inner := schema.get(name), list | tuple):
            yield from ((f"{name}/{i}", part) for i, part in enumerate(inner))
    yield from ((name, schema[name]) for name in _SINGLE if isinstance(schema.get(name), Mapping))


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _are_strings(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
