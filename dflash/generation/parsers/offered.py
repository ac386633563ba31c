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
    """

    def __init__(self, tools: Iterable[Mapping[str, Any]]) -> None:
        self._schemas: dict[str, Any] = {}
        for tool in tools:
            function = tool.get("function", tool) if isinstance(tool, Mapping) else None
            name = function.get("name") if isinstance(function, Mapping) else None
            if isinstance(name, str):
                self._schemas[name] = function.get("parameters")
        self._members: dict[tuple[str, str], tuple[Member, ...]] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._schemas

    def members(self, name: str, key: str) -> tuple[Member, ...]:
        """Return the types that a parameter accepts; a parameter that the schema does not declare is a string."""
        known = self._members.get((name, key))
        return self._read(name, key) if known is None else known

    def _read(self, name: str, key: str) -> tuple[Member, ...]:
        root = self._schemas[name]
        schema = deref(root, root)
        schema = schema if isinstance(schema, Mapping) else {}
        declared, others = schema.get("properties"), schema.get("additionalProperties")
        if isinstance(declared, Mapping) and key in declared:
            found = self._members[name, key] = members(declared[key], root)  # declared keys alone: the model writes others
            return found
        return members(others, root) if isinstance(others, Mapping) and others else STRING
