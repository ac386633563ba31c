"""One row of the table of request fields."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dflash.decode.registry.recoveries import MAX_TOKENS
from dflash.json_types import JsonMapping
from dflash.serve.request_fields.kinds import Kind

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "chat", "completions", "responses", "messages"
OPENAI = (CHAT, COMPLETIONS, RESPONSES)
CHATS = (CHAT, RESPONSES, MESSAGES)
TEXTS = (CHAT, COMPLETIONS)
ALL = (CHAT, COMPLETIONS, RESPONSES, MESSAGES)
"""APIs, and groups of them that rows name."""


class Outcome(Enum):
    """Treatment of a field."""

    DONE = "done"
    MAPPED = "mapped"
    IGNORED = "ignored"
    REFUSED = "refused"


def is_empty(value: object) -> bool:
    """Return True for null, false, 0, and empty text, arrays and objects."""
    return not value


def is_one_of(*values: Any) -> Callable[[Any], bool]:
    """Return a test for null and some values. Numbers equal each other, but no boolean."""
    return lambda value: (
        value is None or any(type(value) is type(each) or _are_numbers(value, each) for each in values if value == each)
    )


def is_at_most(bound: float) -> Callable[[Any], bool]:
    """Return a test for null and numbers up to a bound."""
    return lambda value: value is None or (_are_numbers(value, bound) and value <= bound)


def is_only(*words: str) -> Callable[[Any], bool]:
    """Return a test for null, an empty array, and arrays that hold nothing but some words."""
    return lambda value: value is None or (isinstance(value, list) and all(each in words for each in value))


def unlimited(value: object) -> Any:
    """Return a number of tokens; -1, which stands for no limit in some servers, is the largest one."""
    return MAX_TOKENS if type(value) is int and value == -1 else value


def unchanged(value: object) -> Any:
    """Return the value of a field that is mapped to one with the same values."""
    return value


@dataclass(frozen=True, slots=True)
class FieldRow:
    """Treatment of a field of a request's body.

    text: its effect; why it changes nothing; or the alternative. Begins in lower case, without a full stop.
    kind: type, range and default of a field with a plain value; parsers read it by `FieldRow.read`.
    is_off: ``is_off(value)`` returns True for values that ask for nothing, with which a refused field passes.
    """

    name: str
    apis: tuple[str, ...]
    outcome: Outcome
    text: str
    example: Any
    kind: Kind | None = None
    to: str | None = None
    convert: Callable[[Any], Any] = unchanged
    is_off: Callable[[Any], bool] = is_empty
    needs: JsonMapping = field(default_factory=dict)


def done(name: str, apis: tuple[str, ...], text: str, example: object, kind: Kind | None = None, **needs: Any) -> FieldRow:
    """Return the row of a field that acts."""
    return FieldRow(name, apis, Outcome.DONE, text, example, kind, needs=needs)


def mapped(
    name: str,
    apis: tuple[str, ...],
    to: str,
    text: str,
    example: object,
    *,
    convert: Callable[[Any], Any] = unchanged,
    **needs: Any,
) -> FieldRow:
    """Return the row of another name, or another form, of a field."""
    return FieldRow(name, apis, Outcome.MAPPED, text, example, to=to, convert=convert, needs=needs)


def ignored(name: str, apis: tuple[str, ...], why: str, example: object, **needs: Any) -> FieldRow:
    """Return the row of a field that changes nothing here."""
    return FieldRow(name, apis, Outcome.IGNORED, why, example, needs=needs)


def refused(
    name: str, apis: tuple[str, ...], alternative: str, example: object, is_off: Callable[[Any], bool] = is_empty
) -> FieldRow:
    """Return the row of a field that would change the output, and can't."""
    return FieldRow(name, apis, Outcome.REFUSED, alternative, example, is_off=is_off)


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
