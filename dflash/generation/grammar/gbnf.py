"""Conversion of llama.cpp's grammars (GBNF) to Lark."""

import json
import re
from typing import NamedTuple, NoReturn

from dflash.errors import RequestError
from dflash.generation.grammar.bounds.graph import RuleGraph
from dflash.generation.grammar.lark import without_forcing

_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start[^\S\n]*:(?!:=))", re.MULTILINE)
_BLANKS = re.compile(r"(?:[ \t]++|#[^\r\n]*+)*+")
_BLANKS_AND_LINES = re.compile(r"(?:\s++|#[^\r\n]*+)*+")
_NAME = re.compile(r"[\w-]++")
_CHARACTER = re.compile(r'\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([tnr"\\\[\]]))|([^\\])', re.DOTALL)
_REPEATED = re.compile(r"[*+?]|\{\s*+([0-9]{1,9})\s*+(,\s*+([0-9]{0,9})\s*+)?\}")
_TOKEN = re.compile(r"(!?)<(?:\[([0-9]{1,9})\]|[^\s<>\[\]]++)>")
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r"}
_N_SHOWN = 30


class _Name(NamedTuple):
    """A place where a rule is used."""

    name: str
    at: int


class _TokenName(str):
    """A token, of which no terminal can consist."""

    __slots__ = ()


_Rule = list[str | _Name]


def is_gbnf(grammar: str) -> bool:
    """Return True if a grammar is not in Lark but in GBNF, whose first rule is ``root ::=``."""
    return "::=" in grammar and not _LARK.search(grammar)


def lark_of(grammar: str) -> str:
    """Return the conversion of a grammar in GBNF to Lark.

    The language is that of ``grammars/README.md`` in llama.cpp. Rules without recursion and tokens become terminals, which
    are matched as regular expressions. If all rules are such, the grammar matches what it matches in llama.cpp. Otherwise
    each terminal takes as much text as it can: in ``root ::= word "s" | "(" root ")"`` with ``word ::= [a-z]+`` the word
    takes the ``s`` as well, where llama.cpp would try both. Terminals of single characters would do so, too, but a mask for
    248,320 tokens would take ten times as long or exceed the limits.
    """
    parser = _Parser(grammar)
    try:
        rules = parser.rules()
    except RecursionError:
        raise RequestError("the GBNF grammar is nested too deeply") from None
    terminals = _terminals(rules)
    names = {name: f"{'T' if name in terminals else 'r'}{index}" for index, name in enumerate(rules)}
    lines = ["%llguidance {}", f"start: {names['root']}"]
    for name, rule in rules.items():
        parts = (names[part.name] if isinstance(part, _Name) else part for part in rule)
        lines.append(f"{names[name]}: {''.join(parts)}")
    return without_forcing("\n".join(lines))


class _Parser:
    """Recursive descent over a grammar in GBNF; what it reads becomes Lark at once."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def rules(self) -> dict[str, _Rule]:
        """Return each rule's alternatives, by its name."""
        found: dict[str, _Rule] = {}
        self._skip(_BLANKS_AND_LINES)
        while self._at < len(self._text):
            name = _NAME.match(self._text, self._at)
            if name is None:
                self._fail("expected the name of a rule")
            self._at = name.end()
            self._skip(_BLANKS)
            if not self._text.startswith("::=", self._at):
                self._fail("expected ::=")
            self._at += 3
            self._skip(_BLANKS_AND_LINES)
            found[name[0]] = []
            self._alternatives(found[name[0]], _BLANKS)
            if self._next not in "\r\n":
                self._fail("expected a part of a rule, or the end of the line")
            self._skip(_BLANKS_AND_LINES)
        for rule in found.values():
            for part in rule:
                if isinstance(part, _Name) and part.name not in found:
                    self._at = part.at
                    self._fail(f"there is no rule named {part.name[:_N_SHOWN]}")
        if "root" not in found:
            self._fail("there is no rule named root")
        return found

    @property
    def _next(self) -> str:
        """The next character; empty at the end."""
        return self._text[self._at : self._at + 1]

    def _skip(self, what: re.Pattern[str]) -> None:
        found = what.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _fail(self, reason: str) -> NoReturn:
        line = self._text.count("\n", 0, self._at) + 1
        before, after = self._text[max(0, self._at - _N_SHOWN) : self._at], self._text[self._at : self._at + _N_SHOWN]
        raise RequestError(f"the GBNF grammar is not valid: {reason} at line {line}, between {before!r} and {after!r}")

    def _alternatives(self, rule: _Rule, blanks: re.Pattern[str]) -> None:
        self._sequence(rule, blanks)
        while self._next == "|":
            self._at += 1
            self._skip(_BLANKS_AND_LINES)
            rule.append(" | ")
            self._sequence(rule, blanks)

    def _sequence(self, rule: _Rule, blanks: re.Pattern[str]) -> None:
        rule.append('""')
        while True:
            begin = len(rule)
            rule.append(" ")
            if not self._item(rule):
                break
            n_repeated = 0
            self._skip(blanks)
            while repeated := _REPEATED.match(self._text, self._at):
                low, high = repeated[1], repeated[3] or ""
                if high and int(high) < int(low):
                    self._fail("expected a larger second number")
                self._at = repeated.end()
                n_repeated += 1
                rule.append(f"){repeated[0]}" if low is None else f"){{{low},{high}}}" if repeated[2] else f"){{{low}}}")
                self._skip(blanks)
            rule[begin] = " " + "(" * n_repeated

    def _item(self, rule: _Rule) -> bool:
        """Read a literal, a set of characters, a group, a token or the name of a rule, if one is next."""
        if self._next == '"':
            rule.append(self._literal())
        elif self._next == "[":
            rule.append(self._characters())
        elif self._next == "(":
            self._at += 1
            self._skip(_BLANKS_AND_LINES)
            rule.append("(")
            self._alternatives(rule, _BLANKS_AND_LINES)
            if self._next != ")":
                self._fail("expected )")
            self._at += 1
            rule.append(")")
        elif self._next == ".":
            self._at += 1
            rule.append("/(?s:.)/")
        elif token := _TOKEN.match(self._text, self._at):
            if token[1] and not token[2]:
                self._fail("expected the number of a token, as in !<[7]>")
            self._at = token.end()
            rule.append(_TokenName(f"<[^{token[2]}]>" if token[1] else token[0]))
        elif name := _NAME.match(self._text, self._at):
            self._at = name.end()
            rule.append(_Name(name[0], name.start()))
        else:
            return False
        return True

    def _literal(self) -> str:
        characters = []
        self._at += 1
        while self._next != '"':
            characters.append(self._character())
        self._at += 1
        return json.dumps("".join(characters), ensure_ascii=False)

    def _characters(self) -> str:
        """Read a set of characters in brackets, as a regular expression."""
        ranges = []
        self._at += 1
        is_negated = self._next == "^"
        self._at += is_negated
        while self._next != "]":
            first = last = self._character()
            if self._next == "-" and not self._text.startswith("-]", self._at):
                self._at += 1
                last = self._character()
                if last < first:
                    self._fail("expected a character that does not come before the first one")
            ranges.append(rf"\x{{{ord(first):x}}}-\x{{{ord(last):x}}}")
        if not ranges and not is_negated:
            self._fail("expected a character")
        self._at += 1
        return f"/[{'^' * is_negated}{''.join(ranges)}]/" if ranges else "/(?s:.)/"

    def _character(self) -> str:
        found = _CHARACTER.match(self._text, self._at)
        if found is None:
            self._fail("unknown escape sequence" if self._next else "unexpected end")
        code = found[1] or found[2] or found[3]
        if code and (int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) <= 0xDFFF):
            self._fail("no such character")
        self._at = found.end()
        return chr(int(code, 16)) if code else found[5] or _ESCAPED.get(found[4], found[4])


def _terminals(rules: dict[str, _Rule]) -> set[str]:
    """Return the names of the rules that lead into no circle and to no token."""
    graph = RuleGraph()
    nodes = {name: graph.add(name) for name in rules}
    for name, rule in rules.items():
        for part in rule:
            if isinstance(part, _TokenName):
                graph.link(nodes[name], nodes[name])
            elif isinstance(part, _Name):
                graph.link(nodes[name], nodes[part.name])
    dead = graph.dead(inner=False)
    return {name for name, node in nodes.items() if node not in dead}
