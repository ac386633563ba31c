"""Conversion of llama.cpp's grammars (GBNF) to Lark."""

import re

from dflash.errors import RequestError

_LARK = re.compile(r"^\s*(%llguidance\b|start\s*:(?!:=))", re.MULTILINE)
_MAX_REASON = 200


def lark_source(grammar: str, name: str) -> str:
    """Return a grammar in Lark: the given one, or the conversion of one in GBNF, whose first rule is ``root ::=``.

    Parameters
    ----------
    name : str
        Field of the request, for errors.

    Raises
    ------
    RequestError
        If the grammar is in GBNF and is not valid.

    Notes
    -----
    llguidance converts it. Rules without recursion become terminals, which match as much text as they can: in
    ``root ::= word "s"`` with ``word ::= [a-z]+`` the word would take the ``s`` as well. llama.cpp would try both.
    """
    if "::=" not in grammar or _LARK.search(grammar):
        return grammar
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(grammar)
    except RecursionError:
        raise RequestError(f"{name}: the GBNF grammar is nested too deeply") from None
    except Exception as error:  # the converter raises this class itself for unknown rules
        reason = " ".join(str(error).split())
        reason = reason if len(reason) <= _MAX_REASON else reason[: _MAX_REASON - 3] + "..."
        raise RequestError(f"{name}: the GBNF grammar is not valid: {reason}") from None
