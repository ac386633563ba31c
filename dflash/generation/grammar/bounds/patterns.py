"""Bounds of regular expressions."""

import re

from dflash.errors import RequestError
from dflash.generation.grammar.limits import MAX_PATTERN, MAX_QUANTIFIERS, MAX_REPEATS

_TOKENS = re.compile(r"\\.|[\[\]()?*+]|\{(\d{1,9})(?:,(\d{0,9}))?\}|\{\d{10}|(.)", re.DOTALL)
_MANY = 10**9


def check_pattern(pattern: str) -> None:
    """Check length, number of quantifiers, and the product of counted repetitions within each other.

    Raises
    ------
    RequestError
        If one of them is too large; the message has the value and the bound.
    """
    if len(pattern) > MAX_PATTERN:
        raise RequestError(f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN} are allowed")
    outer: list[int] = []
    most, last, in_class, n_quantifiers = 1, 1, False, 0  # most repetitions in this group, and of its last part
    for token in _TOKENS.finditer(pattern):
        text = token[0]
        if in_class or text == "[":
            in_class, last = text != "]", 1
        elif text == "(":
            outer.append(most)
            most = last = 1
        elif text == ")":
            last = most
            most = max(outer.pop() if outer else 1, last)
        elif text[0] == "{" and token[3] is None:
            n_quantifiers += 1
            last = min(last * max(int(token[1] or _MANY), int(token[2] or 0), 1), _MANY)
            most = max(most, last)
        elif text in "?*+":
            n_quantifiers += 1
        else:
            last = 1
    if most > MAX_REPEATS:
        raise RequestError(f"repetitions within each other multiply to {most}, at most {MAX_REPEATS} are allowed")
    if n_quantifiers > MAX_QUANTIFIERS:
        raise RequestError(f"the pattern has {n_quantifiers} quantifiers, at most {MAX_QUANTIFIERS} are allowed")
