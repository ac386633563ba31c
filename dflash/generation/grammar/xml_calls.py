"""Grammar of tool calls as XML, in the form of Qwen3-Coder and Qwen3.5."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.lark import json_rule, quoted
from dflash.generation.grammar.xml_text import text_value
from dflash.generation.parsers.value_end import CLOSE, FUNCTION_END, PARAMETER

_JSON_END = f"\n{CLOSE}\n"
_OTHER_KEY = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/"


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
    Text is free up to the end of its parameter, as `dflash.generation.parsers.value_end` describes it, without a quote or an
    escape. Values of other types are JSON.
    """
    rules = [f"body: {' | '.join(f'f{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        rules += _Body(i, function, lenient=lenient and not function.strict).rules()
    return rules


class _Body:
    """Rules of one function. ``p{i}_{j}`` follows the tag of parameter j, ``n{i}_{j}`` names the one after it."""

    def __init__(self, i: int, function: Function, *, lenient: bool) -> None:
        self._i, self._function, self._lenient = i, function, lenient
        self._parameters = list(_parameters(function))
        self._required = [key in function.parameters.get("required", ()) for key, _ in self._parameters]

    def rules(self) -> list[str]:
        """Return all rules."""
        i, n = self._i, len(self._parameters)
        head = quoted(f"\n<function={self._function.name}>\n")
        rules = [f'f{i}: {head} ({self._tail(0)}) "\\n"']
        for j, (key, _) in enumerate(self._parameters):
            later = [] if self._required[j] or not self._has_next(j + 1) else [f"n{i}_{j + 1}"]
            tag = quoted(f"{key}>\n")
            rules.append(f"n{i}_{j}: {' | '.join([f'{tag} p{i}_{j}', *later])}")
            rules += self._value(j)
        if self._takes_others:
            others = text_value(f"p{i}_{n}", [], more=[f"n{i}_{n}"], last=True)
            rules += [f'n{i}_{n}: {_OTHER_KEY} ">\\n" p{i}_{n}', *others]
        return rules

    @property
    def _takes_others(self) -> bool:
        """True if the function takes parameters that are not declared."""
        return not self._parameters and self._function.parameters.get("additionalProperties") not in (None, False)

    def _has_next(self, j: int) -> bool:
        """Return True if a parameter may come at place j or later."""
        return j < len(self._parameters) or self._takes_others

    def _may_end(self, j: int) -> bool:
        """Return True if no parameter at place j or later is required."""
        return not any(self._required[j:])

    def _tail(self, j: int) -> str:
        """Return what follows the line before place j, up to the end of the function."""
        options = [f"{quoted(PARAMETER)} n{self._i}_{j}"] if self._has_next(j) else []
        return " | ".join([*options, *([quoted(FUNCTION_END)] if self._may_end(j) else [])])

    def _value(self, j: int) -> list[str]:
        """Return the rules of the value of parameter j and of what follows it."""
        name, (_, schema) = f"p{self._i}_{j}", self._parameters[j]
        function = self._function
        shared = {name: function.parameters[name] for name in ("$defs", "definitions") if name in function.parameters}
        options = _options(schema, shared)
        if options is None and _is_text(schema, shared):
            given = [k for k in range(j + 1) if k == j or self._required[k]]
            open_ = [other for k, (other, _) in enumerate(self._parameters) if k not in given]
            following = [f"n{self._i}_{j + 1}"] if self._has_next(j + 1) else []
            known = [quoted(f"{self._parameters[k][0]}>") for k in given]
            return text_value(name, open_, more=following, known=known, last=self._may_end(j + 1))
        if options is not None:
            value = f"({' | '.join(quoted(option) for option in options)})"
        else:
            value = json_rule({**schema, **shared} if shared else schema, lenient=self._lenient)
        return [f"{name}: {name}_v {quoted(_JSON_END)} ({self._tail(j + 1)})", f"{name}_v: {value}"]


def _parameters(function: Function) -> Iterator[tuple[str, Any]]:
    """Yield the keys and schemas of a function's parameters, required ones without a schema last."""
    properties = function.parameters.get("properties", {})
    required = function.parameters.get("required", ())
    for key in dict.fromkeys((*properties, *required)):
        if not isinstance(key, str) or not key or not key.isprintable() or set(key) & set("<>"):
            raise RequestError(f"tools: {function.name} has a parameter named {key!r:.60}, must be letters without < and >")
        yield key, properties.get(key, {"type": "string"})


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
