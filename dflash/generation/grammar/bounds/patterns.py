"""Bounds of regular expressions."""

import re

from dflash.errors import RequestError
from dflash.generation.grammar.limits import MAX_PATTERN, MAX_QUANTIFIERS, MAX_WRITTEN

_TOKENS = re.compile(r"\\.|\((?:\?:)?|[\[\])?*+]|\{(\d{1,9})(?:,(\d{0,9}))?\}|\{\d{10}|(.)", re.DOTALL)
_MANY = 10**9


def check_pattern(pattern: str) -> None:
    """Check length, number of quantifiers, and the number of characters once counted repetitions are written out."""
    if len(pattern) > MAX_PATTERN:
        raise RequestError(f"the pattern has {len(pattern)} characters, at most {MAX_PATTERN} are allowed")
    outer: list[int] = []
    written, last, in_class, n_quantifiers = 0, 0, False, 0  # characters written out: of this group, of its last part
    for token in _TOKENS.finditer(pattern):
        text = token[0]
        if in_class:
            in_class = text != "]"
        elif text[0] == "(":
            outer.append(written)
            written = last = 0
        elif text == ")":
            last = written
            written += outer.pop() if outer else 0
        elif text[0] == "{" and token[3] is None:
            n_quantifiers += 1
            more = last * (max(int(token[1] or _MANY), int(token[2] or 0), 1) - 1)
            written, last = min(written + more, _MANY), min(last + more, _MANY)
        elif text in "?*+":
            n_quantifiers += 1
        else:
            in_class = text == "["
            written, last = written + 1, 1
    if written > MAX_WRITTEN:
        raise RequestError(f"repetitions write out {min(written, _MANY)} characters, at most {MAX_WRITTEN} are allowed")
    if n_quantifiers > MAX_QUANTIFIERS:
        raise RequestError(f"the pattern has {n_quantifiers} quantifiers, at most {MAX_QUANTIFIERS} are allowed")
