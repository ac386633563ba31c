"""Functions offered to the model, with the schemas of their parameters."""

from collections.abc import Iterable, Mapping

from dflash.generation.parsers.arguments import fitting
from dflash.generation.parsers.schema import STRING, Member, members, object_parts
from dflash.json_types import JsonMapping, JsonObject


class OfferedTools:
    """Functions of a request by name.

    tools: tools in OpenAI's format, with or without the outer ``function``. Others are ignored.
    only: calls of other functions are text. Otherwise they are calls, so that the caller can tell the model its mistake.
    """

    def __init__(self, tools: Iterable[JsonMapping], *, only: bool = False) -> None:
        self._only = only
        self._schemas: JsonObject = {}
        self._strict = set[str]()
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str):
                self._schemas[name] = function.get("parameters")
                if function.get("strict") is True:
                    self._strict.add(name)
        self._objects: dict[str, list[JsonMapping]] = {}
        self._members: dict[tuple[str, str], tuple[Member, ...]] = {}

    @property
    def has_strict(self) -> bool:
        """True if a call of one of the functions must fit its schema wholly."""
        return bool(self._strict)

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def may_call(self, name: str, *, in_block: bool = True, in_reasoning: bool = False) -> bool:
        """Return True if the head of a call of this function begins a call.

        Reasoning often quotes the form of a call with a name that is not offered. Without ``<tool_call>``, it is prose.
        """
        return name in self._schemas or not (self._only or in_reasoning or not in_block)

    def accepts(self, name: str, arguments: str) -> bool:
        """Return True if a function is offered and the JSON text of its arguments fits its parameters; see `fitting`."""
        return name in self._schemas and fitting(arguments, self._schemas[name], strict=name in self._strict)

    def declares(self, name: str, key: str) -> bool:
        """Return True if a function has a parameter of this name; one without any declared parameter may have all."""
        declared = [part["properties"] for part in self._parts(name) if isinstance(part.get("properties"), Mapping)]
        return any(key in properties for properties in declared) or not any(declared)

    def members(self, name: str, key: str) -> tuple[Member, ...]:
        """Return the types that a parameter accepts; a parameter that the schema does not declare is a string."""
        known = self._members.get((name, key))
        return self._read(name, key) if known is None else known

    def _read(self, name: str, key: str) -> tuple[Member, ...]:
        root, found = self._schemas.get(name), list[Member]()
        for part in self._parts(name):
            properties = part.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                found += members(properties[key], root)
        if found:
            self._members[name, key] = tuple(found)  # declared keys alone: the model writes others
            return self._members[name, key]
        others = next((part["additionalProperties"] for part in self._parts(name) if part.get("additionalProperties")), None)
        return members(others, root) if isinstance(others, Mapping) else STRING

    def _parts(self, name: str) -> list[JsonMapping]:
        if name not in self._objects:
            self._objects[name] = object_parts(self._schemas.get(name))
        return self._objects[name]
