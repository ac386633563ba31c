"""The functions that a request offers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.params import check_schema

_FREE: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Function:
    """A function that the model may call.

    Parameters
    ----------
    name : str
    parameters : mapping
        JSON schema of the arguments, an object.
    strict : bool
        True if calls must fit the schema wholly: a schema that can't be enforced is refused.
    """

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def functions_of(tools: Sequence[Mapping[str, Any]]) -> list[Function]:
    """Return the functions of tools in OpenAI's format.

    Raises
    ------
    RequestError
        If a tool has no name, two have the same one, or parameters are no schema of an object.
    """
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
        if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
            raise RequestError(f"{where}: parameters must be the schema of an object, got {parameters!r:.60}")
        check_schema(f"{where}.parameters", parameters)
        _check_parameters(where, parameters)
        found[name] = Function(name, {"type": "object", **parameters}, inner.get("strict") is True)
    return list(found.values())


def _check_parameters(where: str, parameters: Mapping[str, Any]) -> None:
    for name in ("properties", "$defs", "definitions"):
        if not isinstance(parameters.get(name, {}), Mapping):
            raise RequestError(f"{where}: {name} of the parameters must be an object, got {parameters[name]!r:.60}")
    required = parameters.get("required", ())
    if not isinstance(required, list | tuple) or not all(isinstance(key, str) for key in required):
        raise RequestError(f"{where}: required of the parameters must be an array of strings, got {required!r:.60}")
