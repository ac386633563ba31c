"""Free text as the value of a parameter in a call written as XML."""

from collections.abc import Sequence

from dflash.generation.grammar.lark import pattern_of, quoted
from dflash.generation.parsers.value_end import CALL_END, CLOSE, FUNCTION_END, PARAMETER

_BLANK = r"[ \t\r\n]*"
_ENDS = (
    f"{pattern_of(CLOSE)}{_BLANK}(?:{pattern_of(PARAMETER)}|{pattern_of(FUNCTION_END)}|{pattern_of(CALL_END)})",
    f"{pattern_of(FUNCTION_END)}{_BLANK}{pattern_of(CALL_END)}",
)
"""Patterns that would end a value where they stand at the start of a line; see `dflash.generation.parsers.value_end`."""


def text_value(
    name: str, open_keys: Sequence[str], *, more: Sequence[str], last: bool, known: Sequence[str] = ()
) -> list[str]:
    """Return the rules of a value and of what follows it, up to the end of the function.

    The terminals reach to the tag after the value, which alone tells that the value ends.

    Parameters
    ----------
    name : str
        Name of the rule.
    open_keys : sequence of str
        Parameters of the function that may not have been given before: their tags end a value at the start of a line.
    more : sequence of str
        Rules that follow the start of the next parameter's tag.
    known : sequence of str
        Keys, with their bracket, that were given before. The value goes on after them, since none begins twice.
    last : bool
        The function may end after the value.
    """
    rules = []
    text = _unended(open_keys)
    options = []
    if more or known:
        again = [f"({' | '.join(known)}) {name}"] if known else []
        rules += _terminal(f"{name}_m", text, f"\n{CLOSE}\n{PARAMETER}")
        options.append(f"{name}_m ({' | '.join([*more, *again])})")
    if last:
        rules += _terminal(f"{name}_l", text, f"\n{CLOSE}\n{FUNCTION_END}")
        options.append(f"{name}_l")
    return [*rules, f"{name}: {' | '.join(options)}"]


def _unended(open_keys: Sequence[str]) -> str:
    """Return a pattern of all texts in which nothing ends a value."""
    tags = [f"{pattern_of(PARAMETER)}(?:{'|'.join(map(pattern_of, open_keys))})>"] if open_keys else []
    return rf"/(?s:.*)/ & ~/((?s:.*)\n)?(?:{'|'.join([*_ENDS, *tags])})(?s:.*)/"


def _terminal(rule: str, text: str, end: str) -> list[str]:
    """Return a rule that ends at the first `end` after a text."""
    return [f"{rule}[lazy]: {rule.upper()}", f"{rule.upper()}: ({text}) {quoted(end)}"]
