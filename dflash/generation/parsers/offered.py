"""Functions offered to the model, with the schemas of their parameters."""

from collections.abc import Iterable, Mapping
from typing import Any

from dflash.generation.parsers.schema import STRING, Member, deref, members


class OfferedTools:
    """Functions of a request by name.

    Parameters
    ----------
    tools : iterable of mapping
        Tools in OpenAI's format, with or without the outer ``function``. Others are ignored.
    only : bool
        Calls of other functions are text. Otherwise they are calls, so that the caller can tell the model its mistake.
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]], *, only: bool = False) -> None:
        self._only = only
        self._schemas: dict[str, Any] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str):
                self._schemas[name] = function.get("parameters")
        self._members: dict[tuple[str, str], tuple[Member, ...]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def may_call(self, name: str, *, in_block: bool = True, in_reasoning: bool = False) -> bool:
        """Return True if the head of a call of this function begins a call.

        Reasoning often quotes the form of a call with a name that is not offered. Without ``<tool_call>``, it is prose.
        """
        return name in self._schemas or not (self._only or in_reasoning or not in_block)

    def declares(self, name: str, key: str) -> bool:
        """Return True if a function has a parameter of this name; one without any declared parameter may have all."""
        properties = self._object(name).get("properties")
        return key in properties if isinstance(properties, Mapping) and properties else True

    def members(self, name: str, key: str) -> tuple[Member, ...]:
        """Return the types that a parameter accepts; a parameter that the schema does not declare is a string."""
        known = self._members.get((name, key))
        return self._read(name, key) if known is None else known

    def _read(self, name: str, key: str) -> tuple[Member, ...]:
        schema, root = self._object(name), self._schemas.get(name)
        declared, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(declared, Mapping) and key in declared:
            found = self._members[name, key] = members(declared[key], root)  # declared keys alone: the model writes others
            return found
        return members(others, root) if isinstance(others, Mapping) and others else STRING

    def _object(self, name: str) -> Mapping[str, Any]:
        root = self._schemas.get(name)
        schema = deref(root, root)
        return schema if isinstance(schema, Mapping) else {}
