"""Bounds of grammars in Lark: rules in a row, patterns, embedded schemas, and rules that match nothing."""

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from dflash.errors import RequestError
from dflash.generation.grammar.bounds.graph import RuleGraph
from dflash.generation.grammar.bounds.patterns import check_pattern
from dflash.generation.grammar.bounds.schemas import check_references
from dflash.generation.grammar.limits import MAX_CHAIN, MAX_GRAMMAR_PARTS, MAX_QUANTIFIERS

_TOKENS = re.compile(
    r"""
    (?P<comment> //[^\n]*+ )
  | (?P<rule> ^[^\S\n]*+ [?!]? (?P<name>[A-Za-z_]\w*+) (?:\[[^\]\n]*+\])? (?:::\w*+)? (?:\.\d++)? [^\S\n]*+ :(?!:) )
  | (?P<string> "(?:[^"\\\n]++|\\.)*+"?i? )
  | (?P<pattern> /(?P<inner>(?:[^/\\\n]++|\\.)*+)(?:/[imslux]*+)? )
  | (?P<special> <[^>\n]{0,400}+>? )
  | (?P<directive> %[a-z_]++ )
  | (?P<reference> [A-Za-z_]\w*+ )
  | (?P<sign> -> | [|()\[\]?*+~&{}] )
    """,
    re.VERBOSE | re.MULTILINE,
)
_FROM_ZERO = re.compile(r"\{\s{0,9}0")
_BLANK = re.compile(r"\s++")
_DECODER = json.JSONDecoder()


class _Token(NamedTuple):
    kind: str
    text: str
    value: Any = None


def check_grammar(source: str, max_parts: int = MAX_GRAMMAR_PARTS) -> None:
    """Check a grammar in Lark, or in llguidance's JSON form, without compiling it."""
    if not source.lstrip().startswith("{"):
        _Grammar(source, max_parts).check()
        return
    try:
        inner = json.loads(source)
    except (ValueError, RecursionError):
        raise RequestError("is neither Lark nor JSON") from None
    grammars = inner.get("grammars") if isinstance(inner, dict) else None
    for one in grammars if isinstance(grammars, list) else []:
        if isinstance(one, dict) and isinstance(one.get("lark_grammar"), str):
            _Grammar(one["lark_grammar"]).check()
        if isinstance(one, dict) and one.get("json_schema") is not None:
            check_references(one["json_schema"])


class _Grammar:
    def __init__(self, source: str, max_parts: int = MAX_GRAMMAR_PARTS) -> None:
        self._graph, self._nodes = RuleGraph(), dict[str, int]()
        self._source, self._max_parts = source, max_parts

    def check(self) -> None:
        graph, defined = self._graph, set[str]()
        body: list[_Token] = []
        name: str | None = None
        for token in (*_tokens(self._source, self._max_parts), _Token("rule", "")):
            if token.kind not in ("rule", "directive"):
                body.append(token)
                continue
            if name is not None:
                self._read(self._node(name), body)
            body, name = [], token.text if token.kind == "rule" else None
            if token.kind == "rule":
                defined.add(token.text)
        for known in set(self._nodes) - defined:  # imported, or an error that the library names
            graph.link(self._nodes[known], graph.add(known))
        if "start" not in self._nodes:
            return
        start = self._nodes["start"]
        n = graph.longest_chain(start)
        if n > MAX_CHAIN:
            raise RequestError(f"rules lead through {n} others in a row, at most {MAX_CHAIN} are allowed")
        dead = graph.dead(inner=True) & graph.reached(start) & set(self._nodes.values())
        if dead:
            raise RequestError(f"no output matches rule {graph.labels[max(dead)]!r:.60}, which leads only into itself")

    def _node(self, name: str) -> int:
        if name not in self._nodes:
            self._nodes[name] = self._graph.add(name, any_of=True)
        return self._nodes[name]

    def _read(self, rule: int, body: list[_Token]) -> None:
        """Link a rule to its alternatives, and these to their parts."""
        graph = self._graph
        open_ = [(rule, self._alternative(rule))]  # of each open bracket: its alternatives, the current one
        n_quantifiers, negated = 0, False
        for token, after in zip(body, (*body[1:], _Token("sign", "")), strict=False):
            choice, current = open_[-1]
            if token.text in ("(", "["):
                inner = graph.add("(", any_of=True, weight=0)
                open_.append((inner, self._alternative(inner)))
            elif token.text in (")", "]") and len(open_) > 1:
                open_.pop()
                optional = token.text == "]" or _is_optional(after)
                (graph.link_loose if optional else graph.link)(open_[-1][1], choice)
            elif token.text == "|":
                open_[-1] = choice, self._alternative(choice)
            elif token.kind == "reference":
                optional = negated or _is_optional(after)
                (graph.link_loose if optional else graph.link)(current, self._node(token.text))
            n_quantifiers += token.text in ("?", "*", "+") or token.kind == "count"
            negated = token.text == "~"
        if n_quantifiers > MAX_QUANTIFIERS:
            where = f"rule {graph.labels[rule]!r:.60}"
            raise RequestError(f"{where} has {n_quantifiers} quantifiers, at most {MAX_QUANTIFIERS} are allowed")

    def _alternative(self, choice: int) -> int:
        node = self._graph.add("|", weight=0)
        self._graph.link(choice, node)
        return node


def _is_optional(token: _Token) -> bool:
    return token.text in ("?", "*") or (token.kind == "count" and _FROM_ZERO.match(token.text) is not None)


def _tokens(source: str, max_parts: int) -> Iterator[_Token]:
    """Yield the tokens that matter; check patterns and schemas on the way."""
    place, alias, n_tokens = 0, False, 0
    while found := _TOKENS.search(source, place):
        n_tokens += 1
        if n_tokens > max_parts:
            raise RequestError(f"the grammar has more than {max_parts} names, signs and texts")
        place, kind, text = found.end(), found.lastgroup or "", found[0]
        if kind == "rule" or found["rule"]:
            yield _Token("rule", found["name"])
        elif kind == "pattern":
            check_pattern(found["inner"])
            yield _Token(kind, text)
        elif kind == "directive" and text in ("%json", "%regex", "%llguidance"):
            value, place = _json_at(source, place, text)
            if text == "%json":
                check_references(value)
            yield _Token("value" if text != "%llguidance" else "directive", text)
        elif text == "{":
            end = source.find("}", place, place + 40)
            if end >= 0:
                yield _Token("count", source[found.start() : end + 1])
                place = end + 1
        elif kind not in ("comment", "string") and not (alias and kind == "reference"):
            yield _Token(kind, text)
        alias = text == "->"


def _json_at(source: str, place: int, directive: str) -> tuple[Any, int]:
    try:
        blank = _BLANK.match(source, place)
        return _DECODER.raw_decode(source, place if blank is None else blank.end())
    except (ValueError, RecursionError):
        line = source.count("\n", 0, place) + 1
        raise RequestError(f"line {line}: {directive} must be followed by JSON that is not nested too deeply") from None
