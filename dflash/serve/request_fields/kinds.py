"""Types of plain fields: reading, range, and a value that is refused."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dflash.generation.messages.fields import Fields
from dflash.json_types import JsonObject

MAX_ID = 2**31 - 1
"""Largest token id that a body may name."""


@dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """Type, range and default of a field, for parsers, the page and the description of the API.

    read: ``read(fields, name)`` returns the value of a field, or the default. Raises FieldError if it has another type or is
        out of range.
    wrong: a value that `read` refuses.
    words: type and range for the page.
    schema: type and range as JSON schema; null is the default.
    """

    read: Callable[[Fields, str], Any]
    wrong: Any
    words: str
    schema: JsonObject


def number(low: float, high: float, default: float | None = None) -> Kind:
    """Return the kind of a number from `low` to `high`."""
    schema = {"type": ["number", "null"], "minimum": low, "maximum": high}
    return Kind(lambda fields, name: fields.number(name, low, high, default), high + 1, f"{low:g} to {high:g}", schema)


def whole(low: int, high: int, default: int | None = None, none: int | None = None) -> Kind:
    """Return the kind of a whole number from `low` to `high`; `none`, if given, stands for no value."""

    def read(fields: Fields, name: str) -> Any:
        value = fields.any(name)
        if none is not None and type(value) in (int, float) and value == none:
            return default
        return fields.integer(name, low, high, default)

    most = "" if high >= 2**31 - 1 else f" to {high}"
    words = f"whole number, {f'from {low}' if low > -(2**31) else 'any'}{most}" + (
        "" if none is None else f"; {none} is none"
    )
    return Kind(read, high + 1, words, {"type": ["integer", "null"], "minimum": low, "maximum": high})


def flag(default: bool = False) -> Kind:
    """Return the kind of true or false."""
    words = f"true or false; {str(default).lower()} by default"
    return Kind(lambda fields, name: fields.flag(name, default), "yes", words, {"type": ["boolean", "null"]})


def choice(*words: str) -> Kind:
    """Return the kind of one of some words, the first of which is the default."""
    return Kind(lambda fields, name: fields.choice(name, words, words[0]), 5, ", ".join(words), {"enum": [*words, None]})


def text(longest: int | None = None) -> Kind:
    """Return the kind of a text of 1 to `longest` characters, or of any length."""

    def read(fields: Fields, name: str) -> Any:
        value = fields.text(name, None)
        if longest is not None and value is not None and not 0 < len(value) <= longest:
            raise fields.error(name, f"must have 1 to {longest} characters, got {len(value)}")
        return value

    words, bounds = (
        ("text", {}) if longest is None else (f"text, at most {longest} characters", {"minLength": 1, "maxLength": longest})
    )
    return Kind(read, 5, words, {"type": ["string", "null"], **bounds})


def ids(most: int) -> Kind:
    """Return the kind of at most `most` token ids."""

    def read(fields: Fields, name: str) -> Any:
        found = fields.list(name) or []
        if len(found) > most:
            raise fields.error(name, f"holds {len(found)} token ids, at most {most} are allowed")
        if not all(type(token) is int and 0 <= token <= MAX_ID for token in found):
            raise fields.error(name, "must be an array of token ids")
        return tuple(dict.fromkeys(found))

    items = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
    return Kind(read, [-1], f"at most {most} token ids", {"type": ["array", "null"], "items": items, "maxItems": most})
