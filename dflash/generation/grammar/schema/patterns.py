"""Conversion of ECMA regular expressions, as schemas hold them, to those of the grammar library."""

import re
from collections.abc import Iterator

_CLASSES = {"d": "0-9", "w": "0-9A-Za-z_", "s": r" \t\n\r\x0B\x0C"}
_ESCAPES = {"n": r"\n", "r": r"\r", "t": r"\t", "f": r"\x0C", "v": r"\x0B", "0": r"\x00"}
_SIGNS = set(r"\.+*?()|[]{}^$#&-~/")
_HEX = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\})")
_PAIR = re.compile(r"\\u([dD][89abAB][0-9A-Fa-f]{2})\\u([dD][c-fC-F][0-9A-Fa-f]{2})")
_COUNT = re.compile(r"\{[0-9]{1,6}(?:,[0-9]{0,6})?\}")
_PROPERTY = re.compile(r"\\[pP](?:\{[A-Za-z_=]{1,40}\}|[A-Z])")


class UnsupportedPattern(ValueError):
    """A part of an expression that can't be converted; the message names it."""


def searched(pattern: str) -> str:
    """Return an expression for all texts in which a pattern is found, as it stands between slashes."""
    return "|".join(_anchored(branch) for branch in _branches(pattern))


def _anchored(branch: str) -> str:
    starts = branch.startswith("^")
    branch = branch[starts:]
    n_slashes = len(branch[:-1]) - len(branch[:-1].rstrip("\\"))
    ends = branch.endswith("$") and n_slashes % 2 == 0
    inner = "".join(_converted(branch[: len(branch) - ends]))
    return f"{'' if starts else '(?s:.*)'}(?:{inner}){'' if ends else '(?s:.*)'}"


def _branches(pattern: str) -> list[str]:
    """Split an expression at its outermost alternatives."""
    found, depth, start, i, in_class = [], 0, 0, 0, False
    while i < len(pattern):
        sign = pattern[i]
        if sign == "\\":
            i += 1
        elif in_class:
            in_class = sign != "]"
        elif sign == "[":
            in_class = True
        elif sign in "()":
            depth += 1 if sign == "(" else -1
        elif sign == "|" and depth == 0:
            found.append(pattern[start:i])
            start = i + 1
        i += 1
    return [*found, pattern[start:]]


def _converted(pattern: str) -> Iterator[str]:
    """Yield the converted parts of an expression without outer anchors."""
    i, depth = 0, 0
    while i < len(pattern):
        sign = pattern[i]
        if sign == "\\":
            part, i = _escape(pattern, i)
            yield part
            continue
        if sign == "[":
            part, i = _class(pattern, i)
            yield part
            continue
        i += 1
        if sign == "(":
            depth += 1
            rest = pattern[i : i + 3]
            if rest.startswith("?:"):
                i += 2
            elif rest.startswith("?<") and rest[2:3] not in ("=", "!"):
                i = pattern.index(">", i) + 1 if ">" in pattern[i:] else i
            elif rest.startswith("?"):
                raise UnsupportedPattern(f"({rest[:2]}: look-around or a flag")
            yield "(?:"
        elif sign == ")":
            depth -= 1
            if depth < 0:
                raise UnsupportedPattern("a bracket that closes nothing")
            yield ")"
        elif sign in "^$":
            raise UnsupportedPattern("an anchor inside the expression")
        elif sign == ".":
            yield r"[^\n\r]"
        elif sign == "{":
            count = _COUNT.match(pattern, i - 1)
            yield count[0] if count else r"\{"
            i = count.end() if count else i
        elif sign in "*+?|":
            yield sign
        else:
            yield literal(sign)
    if depth:
        raise UnsupportedPattern("a bracket that is not closed")


def _escape(pattern: str, i: int, *, in_class: bool = False) -> tuple[str, int]:
    """Return the converted escape at `i` and the position after it."""
    for found, digits in ((_PAIR.match(pattern, i), None), (_HEX.match(pattern, i), 16)):
        if found and digits is None:
            high, low = int(found[1], 16), int(found[2], 16)
            return rf"\x{{{0x10000 + ((high - 0xD800) << 10) + low - 0xDC00:X}}}", found.end()
        if found:
            return rf"\x{{{int(found[1] or found[2] or found[3], 16):X}}}", found.end()
    named = _PROPERTY.match(pattern, i)
    if named:
        return named[0].replace("Script=", "").replace("General_Category=", ""), named.end()
    sign = pattern[i + 1 : i + 2]
    if not sign:
        raise UnsupportedPattern("a backslash at the end")
    if sign.lower() in _CLASSES:
        inner = _CLASSES[sign.lower()]
        if sign.isupper():
            return f"[^{inner}]", i + 2
        return (inner if in_class else f"[{inner}]"), i + 2
    if sign in _ESCAPES:
        return _ESCAPES[sign], i + 2
    if sign in "bB" and not in_class:
        raise UnsupportedPattern("a word boundary")
    if sign == "b":
        return r"\x08", i + 2
    if sign.isdigit() or sign == "k":
        raise UnsupportedPattern("a reference to a group")
    return literal(sign), i + 2


def _class(pattern: str, i: int) -> tuple[str, int]:
    """Return the converted class of characters at `i` and the position after it."""
    parts, i = ["["], i + 1
    if pattern.startswith("^", i):
        parts, i = ["[^"], i + 1
    if pattern.startswith("]", i):
        raise UnsupportedPattern("an empty class of characters")
    while i < len(pattern) and pattern[i] != "]":
        if pattern[i] == "\\":
            part, i = _escape(pattern, i, in_class=True)
        else:
            part, i = (pattern[i] if pattern[i] == "-" else literal(pattern[i])), i + 1
        parts.append(part)
    if i == len(pattern):
        raise UnsupportedPattern("a class of characters that is not closed")
    if parts[-1] == "-":
        parts[-1] = r"\-"
    if len(parts) > 1 and parts[1] == "-":
        parts[1] = r"\-"
    return "".join(parts) + "]", i + 1


def literal(text: str) -> str:
    """Return an expression, as it stands between slashes, that matches exactly this text."""
    return "".join(f"\\{sign}" if sign in _SIGNS else rf"\x{{{ord(sign):X}}}" if sign < " " else sign for sign in text)
