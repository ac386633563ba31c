"""The functions that a request offers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dflash.errors import RequestError
from dflash.generation.grammar.params import check_schema
from dflash.json_types import JsonMapping

_FREE: JsonMapping = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call.

    strict: True if calls must fit the schema wholly: a schema that can't be enforced is refused.
    """

    name: str
    parameters: JsonMapping
    strict: bool = False


def functions_of(tools: Sequence[JsonMapping]) -> list[Function]:
    """Return the functions of tools in OpenAI's format."""
    found: dict[str, Function] = {}
    for i, tool in enumerate(tools):
        where = f"tools[{i}]"
        inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
        name = inner.get("name") if isinstance(inner, Mapping) else None
        if not isinstance(name, str) or not name or not name.isprintable() or set(name) & set("<>"):
            raise RequestError(f"{where}: must name a function in letters without < and >, got {name!r:.60}")
        if name in found:
            raise RequestError(f"{where}: is the second one with the name {name!r:.60}")
        parameters = inner.get("parameters") or _FREE
        if not isinstance(parameters, Mapping) or not _is_object(parameters.get("type")):
            raise RequestError(f"{where}: parameters must be the schema of an object, got {parameters!r:.60}")
        check_schema(f"{where}.parameters", parameters)
        found[name] = Function(name, parameters, inner.get("strict") is True)
    return list(found.values())


def is_strict(tool: JsonMapping) -> bool:
    """Return True if a tool in OpenAI's format is strict."""
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    return isinstance(inner, Mapping) and inner.get("strict") is True


def _is_object(kind: object) -> bool:
    """Return True if a type, in any case, may be an object."""
    names = kind if isinstance(kind, list | tuple) else [kind]
    return kind is None or any(isinstance(name, str) and name.lower() in ("object", "dict", "map") for name in names)
