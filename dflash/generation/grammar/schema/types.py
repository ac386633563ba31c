"""Type names of a schema."""

from dflash.generation.grammar.schema.policy import Policy
from dflash.json_types import JsonMapping

KINDS = "null", "boolean", "integer", "number", "string", "array", "object"

_OTHER = {"int": "integer", "long": "integer", "float": "number", "double": "number", "decimal": "number", "bool": "boolean"}
_OTHER |= {"str": "string", "text": "string", "list": "array", "tuple": "array", "dict": "object", "map": "object"}
_OTHER |= {"none": "null", "any": ""}
"""Names of other languages; ``any`` names no type."""


def types_of(schema: JsonMapping, pointer: str, policy: Policy) -> tuple[str, ...] | None:
    """Return the names of the types that a schema allows; None for all."""
    given = schema.get("type")
    names = list(given) if isinstance(given, list | tuple) else [given]
    if given is None or not names:
        if names == []:
            policy.give_up(pointer, "type", "it names no type")
        return None
    found = []
    for name in names:
        if name in KINDS and isinstance(name, str):
            found.append(name)
            continue
        known = name.lower() if isinstance(name, str) else None
        if known not in KINDS and known not in _OTHER and policy.is_tool and not policy.strict:
            policy.give_up(pointer, "type", f"{name!r:.60} is no type of JSON")
            return None
        if known not in KINDS and known not in _OTHER:
            raise policy.refuse(pointer, "type", f"must name types of JSON, got {name!r:.60}")
        policy.give_up(pointer, "type", f"{name!r:.60} is read as {_OTHER.get(known, known) or 'no type'!r}")
        found.append(_OTHER.get(known, known))
    return None if "" in found else tuple(dict.fromkeys(found))
