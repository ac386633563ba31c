"""Grammar of tool calls as XML, in the form of Qwen3-Coder and Qwen3.5."""

from collections.abc import Sequence
from typing import Any

from dflash.errors import RequestError
from dflash.generation.grammar.functions import Function
from dflash.generation.grammar.json_rules import JSONRules
from dflash.generation.grammar.lark import pattern_of, quoted
from dflash.generation.grammar.limits import MAX_PARAMETERS
from dflash.generation.grammar.schema.literals import ALL, INTEGER, Literals, may_be
from dflash.generation.grammar.schema.plain import PlainSchemas
from dflash.generation.grammar.schema.policy import Notes, Policy
from dflash.generation.grammar.schema.shapes import ParameterSet, shapes_of
from dflash.generation.grammar.xml_text import TextRules
from dflash.generation.parsers.calls.value_end import CLOSE, FUNCTION_END, PARAMETER
from dflash.generation.parsers.offered import OfferedTools
from dflash.generation.parsers.schema import only_strings

_JSON_END = f"\n{CLOSE}\n"
_OTHER_KEY = r"/[A-Za-z_][A-Za-z0-9_.\-]{0,63}/"
_BLANK = r"[ \t\r\n]*"
_PYTHON = "/True|False|None|NULL|Null/"

_MAX_DISTINGUISHED = 64
"""Most parameters of a function for which a text may hold the tags of parameters that were given before it. A list of the
others stands beside each of them."""

_UNDECLARED = "\n"
"""Stands for the key of a parameter that no schema declares."""

Parts = tuple[tuple[Any, str], ...]
"""Schemas of one value, with their JSON pointers."""


def xml_body(
    functions: Sequence[Function], notes: Notes, tags: Sequence[int] = (), call_end: int | None = None
) -> list[str]:
    """Return the rules of ``body``: the text between ``<tool_call>`` and ``</tool_call>``.

    Text is free up to the end of its parameter, as `dflash.generation.parsers.calls.value_end` describes it, without a quote
    or an escape. Values of other types are JSON.
    """
    texts, values = TextRules(tags, call_end), JSONRules()
    rules = [f"body: {' | '.join(f'f{i}' for i in range(len(functions)))}"]
    for i, function in enumerate(functions):
        policy = Policy(f"tools: {function.name}", strict=function.strict, notes=notes)
        rules += _Body(f"{i}", function, policy, texts, values).rules()
    return [*rules, *texts.rules, *values.rules]


class _Body:
    """Rules of one function: those of each of its shapes, and of values that the shapes share."""

    def __init__(self, name: str, function: Function, policy: Policy, texts: TextRules, values: JSONRules) -> None:
        self.name, self.function, self.policy, self.texts, self.values = name, function, policy, texts, values
        self.offered = OfferedTools([{"name": function.name, "parameters": function.parameters}])
        self.literals = Literals(function.parameters, policy, f"L{name}")
        self.plain = PlainSchemas(function.parameters, policy)

    def rules(self) -> list[str]:
        """Return all rules."""
        shapes = shapes_of(self.function.parameters, self.policy)
        n = sum(len(shape.properties) + len(shape.required) for shape in shapes)
        if n > MAX_PARAMETERS:
            count = f"has {n} parameters in all its forms, at most {MAX_PARAMETERS} are allowed"
            raise RequestError(f"{self.policy.name}: {count}")
        names = [f"{self.name}_{s}" for s in range(len(shapes))]
        head = quoted(f"\n<function={self.function.name}>\n")
        rules = [f'f{self.name}: {head} ({" | ".join(f"s{name}" for name in names)}) "\\n"']
        for name, shape in zip(names, shapes, strict=True):
            rules += _ShapeRules(name, shape, self, is_only=len(shapes) == 1).rules()
        return [*rules, *self.literals.rules]


class _ShapeRules:
    """Rules of one shape. ``p{name}_{j}`` follows the tag of parameter j, ``n{name}_{j}`` names the one after it."""

    def __init__(self, name: str, shape: ParameterSet, body: _Body, *, is_only: bool) -> None:
        self._name, self._body, self._is_only = name, body, is_only
        self._parameters: list[tuple[str, Parts]] = []
        for key in dict.fromkeys((*shape.properties, *shape.required)):
            if not isinstance(key, str) or not key or not key.isprintable() or set(key) & set("<>"):
                named = f"tools: {body.function.name} has a parameter named {key!r:.60}"
                raise RequestError(f"{named}, must be letters without < and >")
            self._parameters.append((key, shape.properties.get(key) or self._undeclared(shape, key)))
        self._required = [key in shape.required for key, _ in self._parameters]
        self._others = None if shape.additional in (None, False) else shape.additional

    @staticmethod
    def _undeclared(shape: ParameterSet, key: str) -> Parts:
        """Return the schema of a required parameter that the schema does not declare: a string, unless others have one."""
        return (({"type": "string"} if shape.additional in (None, True, False) else shape.additional, f"/required/{key}"),)

    def rules(self) -> list[str]:
        """Return all rules."""
        name, n = self._name, len(self._parameters)
        rules = [f"s{name}: {self._tail(0)}"]
        for j, (key, parts) in enumerate(self._parameters):
            later = [] if self._required[j] or not self._has_next(j + 1) else [f"n{name}_{j + 1}"]
            tag = quoted(f"{key}>\n")
            rules.append(f"n{name}_{j}: {' | '.join([f'{tag} p{name}_{j}', *later])}")
            rules.append(f"p{name}_{j}: {' | '.join(self._value(j, key, parts))}")
        if self._others is not None:
            declared = "|".join(pattern_of(key) for key, _ in self._parameters)
            keys = f"O{name}: {_OTHER_KEY}" + (f" & ~/{declared}/" if declared else "")
            rules += [keys, f'n{name}_{n}: O{name} ">\\n" p{name}_{n}']
            parts = ((self._others, "/additionalProperties"),)
            others = self._value(n, _UNDECLARED, parts)
            rules.append(f"p{name}_{n}: {' | '.join(others)}")
        return rules

    def _has_next(self, j: int) -> bool:
        """Return True if a parameter may come at place j or later."""
        return j < len(self._parameters) or self._others is not None

    def _tail(self, j: int) -> str:
        """Return what follows the line before place j, up to the end of the function."""
        options = [f"{quoted(PARAMETER)} n{self._name}_{min(j, len(self._parameters))}"] if self._has_next(j) else []
        return " | ".join([*options, *([quoted(FUNCTION_END)] if not any(self._required[j:]) else [])])

    def _value(self, j: int, key: str, parts: Parts) -> list[str]:
        """Return the alternatives of the value of parameter j and of what follows it."""
        literals, name = self._body.literals, f"p{self._name}_{j}"
        members = self._body.offered.members(self._body.function.name, key)
        kinds = frozenset[str]().union(*(member.kinds for member in members))
        text = literals.fitting(parts, "string")
        if text is None and kinds <= {"boolean", "null"}:
            found = [each for kind in ("boolean", "null") if (each := literals.fitting(parts, kind)) is not None]
            return self._literal(j, " | ".join(found))
        if text is None:
            value = self._json(parts)
            words = [each for kind in ("boolean", "null") if (each := literals.fitting(parts, kind)) is not None]
            python = self._literal(j, f"({' | '.join(words)}) & {_PYTHON}") if words else []
            return [f"{value} {quoted(_JSON_END)} ({self._tail(j + 1)})", *python]
        options = []
        is_free = text == ALL["string"] and only_strings(members)
        if not only_strings(members):
            text = f"({text} & ~{_literal_texts(kinds)})"
            scalars = [each for kind in ("boolean", "null", "number") if (each := literals.fitting(parts, kind)) is not None]
            text = f"({' | '.join([text, *scalars])})"
            if all(may_be(schema, self._body.function.parameters, {"array", "object"}) for schema, _ in parts):
                structured = ({"type": ["array", "object"]}, "")
                options.append(f"{self._json((*parts, structured))} {quoted(_JSON_END)} ({self._tail(j + 1)})")
        return [*options, *self._text(j, name, text, is_free=is_free)]

    def _literal(self, j: int, text: str) -> list[str]:
        if not text:
            key, parts = self._parameters[j]
            raise RequestError(f"{self._body.policy.name}: #{parts[0][1]}: no value of {key!r:.60} matches")
        return self._text(j, "", f"({text})", is_free=False)

    def _text(self, j: int, name: str, text: str, *, is_free: bool) -> list[str]:
        # shapes share their terminals only if what was given before does not matter
        before = range(min(j + 1, len(self._parameters)))
        given = [k for k in before if k == j or (self._required[k] and self._is_only)]
        given = given if len(self._parameters) <= _MAX_DISTINGUISHED else []
        open_keys = [key for k, (key, _) in enumerate(self._parameters) if k not in given]
        following = [f"n{self._name}_{min(j + 1, len(self._parameters))}"] if self._has_next(j + 1) else []
        known = [quoted(f"{self._parameters[k][0]}>") for k in given] if is_free else []
        last = not any(self._required[j + 1 :])
        return self._body.texts.options(name, text, open_keys, more=following, last=last, known=known, tagged=is_free)

    def _json(self, parts: Parts) -> str:
        plain = self._body.plain
        found = [plain.reduced(schema, pointer) for schema, pointer in parts]
        return self._body.values.add(self._body.policy.name, plain, found[0] if len(found) == 1 else {"allOf": found})


def _literal_texts(kinds: frozenset[str]) -> str:
    """Return the texts that the parser reads as values of these kinds, where they are no strings."""
    if "string" not in kinds:  # the parser reads every literal as what it is
        kinds = frozenset(("null", "boolean", "number", "array", "object", "quoted"))
    found = [ALL[kind][1:-1] for kind in ("null", "boolean", "number") if kind in kinds]
    found += [INTEGER[1:-1]] if "integer" in kinds and "number" not in kinds else []
    opening = "".join(sign for kind, sign in (("array", r"\["), ("object", r"\{"), ("quoted", '"')) if kind in kinds)
    found += [f"[{opening}](?s:.*)"] if opening else []
    return f"/{_BLANK}(?:{'|'.join(found)}){_BLANK}/"
