"""Conversion of llama.cpp's grammars (GBNF) to Lark."""

import re
from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from dflash.distribution import needed
from dflash.errors import RequestError
from dflash.generation.grammar.bounds.graph import RuleGraph
from dflash.generation.grammar.lark import without_forcing

_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start[^\S\n]*:(?!:=))", re.MULTILINE)
_COMMENTS = re.compile(r'"(?:[^"\\\n]++|\\.)*+"?|\[(?:[^\]\\\n]++|\\.)*+\]?|#[^\n]*+')
_MAX_REASON = 200


def is_gbnf(grammar: str) -> bool:
    """Return True if a grammar is not in Lark but in GBNF, whose first rule is ``root ::=``."""
    return "::=" in grammar and not _LARK.search(grammar)


def lark_of(grammar: str) -> str:
    """Return the conversion of a grammar in GBNF to Lark.

    Raises
    ------
    RequestError
        If the grammar is not valid.

    Notes
    -----
    llguidance converts it. Rules without recursion become terminals, which match as much text as they can: in
    ``root ::= word "s"`` with ``word ::= [a-z]+`` the word would take the ``s`` as well. llama.cpp would try both. The
    library looks for terminals in quadratic time and joins comments in quadratic time, so both are done here before.
    """
    with needed("a GBNF grammar", "grammar", RequestError):
        from llguidance import gbnf_to_lark as library

    try:
        rules = library.GrammarParser().parse(_COMMENTS.sub(_blank, grammar))
        for name in _terminals(rules):
            rules[name].rule_is_terminal = True
        library.resolve(rules)
        lines = map(str, sorted(rules.values(), key=attrgetter("order")))
        return without_forcing("\n".join(("%llguidance {}", *lines)))
    except RecursionError:
        raise RequestError("the GBNF grammar is nested too deeply") from None
    except Exception as error:  # the converter raises this class itself for unknown rules
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
        raise RequestError(f"the GBNF grammar is not valid: {reason}") from None


def _blank(found: re.Match[str]) -> str:
    """Return blanks in place of a comment, so that errors name the right place."""
    return found[0] if found[0][0] in '"[' else " " * len(found[0])


def _terminals(rules: Mapping[str, Any]) -> list[str]:
    """Return the names of the rules that lead into no circle; ``root`` is no terminal."""
    graph = RuleGraph()
    nodes = {name: graph.add(name, any_of=name == "root") for name in rules}
    for name, rule in rules.items():
        waiting = [] if name == "root" else rule.children()
        while waiting:
            part = waiting.pop()
            if hasattr(part, "target"):
                graph.link(nodes[name], nodes.get(part.name, nodes.get("root", 0)))
            waiting.extend(part.children())
    dead = graph.dead(inner=False)
    return [name for name, node in nodes.items() if node not in dead]
