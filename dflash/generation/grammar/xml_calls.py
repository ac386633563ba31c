"""Grammar of tool calls as XML, in the form of Qwen3-Coder and Qwen3.5."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.lark import json_rule, quoted

_END = "\n</parameter>"
_BODIES = (
    "filled[lazy]: FILLED",
    "any_text[lazy]: ANY_TEXT",
    f"FILLED: (/(?s:\\s*\\S.*)/ & ~/(?s:.*)<\\/parameter>(?s:.*)/) {quoted(_END)}",
    f"ANY_TEXT: (/(?s:.*)/ & ~/(?s:.*)<\\/parameter>(?s:.*)/) {quoted(_END)}",
    'other: "<parameter=" /[A-Za-z_][A-Za-z0-9_.\\-]{0,63}/ ">\\n" any_text "\\n"',
)
"""Free text up to the end of its parameter; `FILLED` has at least one character that is not white space."""


def xml_body(functions: Sequence[Function], *, lenient: bool) -> list[str]:
    """Return the rules of ``body``: the text between ``<tool_call>`` and ``</tool_call>``.

    Parameters
    ----------
    functions : sequence of Function
        Functions that may be called; at least one. Parameters come in the order of their schema.
    lenient : bool
        Ignore keywords of schemas that can't be enforced, except for strict functions.

    Notes
    -----
    Text is free up to the end of its parameter, without a quote or an escape; a line break may be its first character.
    Required text is not empty. Values of other types are JSON.
    """
    rules = [f"body: {' | '.join(f'f{i}' for i in range(len(functions)))}", *_BODIES]
    for i, function in enumerate(functions):
        names, lines = [], []
        for j, (key, schema) in enumerate(_parameters(function)):
            required = key in function.parameters.get("required", ())
            names.append(f"p{i}_{j}" + ("" if required else "?"))
            value = _value(function, schema, required=required, lenient=lenient and not function.strict)
            lines.append(f"p{i}_{j}: {quoted(f'<parameter={key}>{chr(10)}')} {value} {quoted(chr(10))}")
        if not names and function.parameters.get("additionalProperties", True) is not False:
            names = ["other*"]
        open_, close = quoted(f"\n<function={function.name}>\n"), quoted("</function>\n")
        rules += [f"f{i}: {' '.join((open_, *names, close))}", *lines]
    return rules


def _parameters(function: Function) -> Iterator[tuple[str, Any]]:
    """Yield the keys and schemas of a function's parameters, required ones without a schema last."""
    properties = function.parameters.get("properties", {})
    required = function.parameters.get("required", ())
    for key in dict.fromkeys((*properties, *required)):
        if not isinstance(key, str) or not key or not key.isprintable() or set(key) & set("<>"):
            raise RequestError(f"tools: {function.name} has a parameter named {key!r:.60}, must be letters without < and >")
        yield key, properties.get(key, {"type": "string"})


def _value(function: Function, schema: Any, *, required: bool, lenient: bool) -> str:
    shared = {name: function.parameters[name] for name in ("$defs", "definitions") if name in function.parameters}
    options = _options(schema, shared)
    if options is not None:
        return f"({' | '.join(quoted(option) for option in options)}) {quoted(_END)}"
    if _is_text(schema, shared):
        return "filled" if required else "any_text"
    return f"{json_rule({**schema, **shared} if shared else schema, lenient=lenient)} {quoted(_END)}"


def _resolved(schema: Any, shared: Mapping[str, Any]) -> Any:
    """Return the schema that a reference to the shared definitions means."""
    for _ in range(8):  # a reference to a reference is rare; a cycle of them means nothing
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str):
            break
        group, _, name = reference.removeprefix("#/").partition("/")
        schema = shared.get(group, {}).get(name)
    return None if isinstance(schema, Mapping) and "$ref" in schema else schema


def _options(schema: Any, shared: Mapping[str, Any]) -> list[str] | None:
    """Return the texts of the only possible values; None if the values are not listed."""
    schema = _resolved(schema, shared)
    if not isinstance(schema, Mapping) or not ("const" in schema or schema.get("enum")):
        return None
    values = [schema["const"]] if "const" in schema else schema["enum"]
    if not isinstance(values, list | tuple):
        raise RequestError(f"tools: enum of a parameter must be an array, got {values!r:.60}")
    return [value if isinstance(value, str) else json.dumps(value) for value in values]


def _is_text(schema: Any, shared: Mapping[str, Any]) -> bool:
    """Return True if a value may be a string: then it is written without quotes."""
    waiting, seen = [schema], set[int]()
    while waiting:
        part = _resolved(waiting.pop(), shared)
        if not isinstance(part, Mapping):
            return True
        if id(part) in seen:
            continue
        seen.add(id(part))
        kinds = part.get("type")
        if kinds is not None:
            if "string" in ([kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list | tuple) else ()):
                return True
            continue
        groups = [group for name in ("anyOf", "oneOf", "allOf") if isinstance(group := part.get(name), list | tuple)]
        waiting += (each for group in groups for each in group)
        if not groups and not {"properties", "items"} & set(part):
            return True
    return False
