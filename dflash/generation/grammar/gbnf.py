"""Conversion of llama.cpp's grammars (GBNF) to Lark."""

import re

from dflash.errors import RequestError

_LARK = re.compile(r"^[^\S\n]*(%llguidance\b|start[^\S\n]*:(?!:=))", re.MULTILINE)
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
    ``root ::= word "s"`` with ``word ::= [a-z]+`` the word would take the ``s`` as well. llama.cpp would try both.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise RequestError("the GBNF grammar is nested too deeply") from None
    except Exception as error:  # the converter raises this class itself for unknown rules
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
        raise RequestError(f"the GBNF grammar is not valid: {reason}") from None
