"""Table of recoveries by name: on the command line, in requests and in the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from dflash.decode.registry.word_table import WordTable
from dflash.errors import RequestError, did_you_mean

MAX_TOKENS = 2**31 - 1
"""Maximum of token counts in requests: int32."""

_OFF, _ON = ("", "0", "false", "no", "off"), ("1", "true", "yes", "on")

T = TypeVar("T", bound=type)


class RequestFields(Protocol):
    """Fields of a request's body, as the server reads them. Errors name the field."""

    def integer(self, field: str, low: int, high: int, default: int) -> int:
        """Return a whole number from `low` to `high`; `default` if it is absent."""

    def object(self, field: str) -> RequestFields | None:
        """Return the fields of an object; None if it is absent."""


class RequestField(NamedTuple):
    """A field of a request that turns a recovery on.

    read: ``read(fields)`` returns the recovery, or None if the request does not want it.
    """

    name: str
    read: Callable[[RequestFields], Any]


class Option(NamedTuple):
    """Value after the colon of a name.

    label: name of the value in messages, such as ``"N"`` in ``min:N``.
    parameter: parameter of the class that it sets.
    kind: `int` for a whole number of at most nine digits, `str` for any text without a comma.
    required: refuse the name without a value.
    """

    label: str
    parameter: str
    kind: type = int
    required: bool = False


@dataclass(frozen=True, slots=True)
class RegisteredRecovery:
    """One registered recovery; `register` documents the fields."""

    word: str
    kind: type
    option: Option | None = None
    variable: str | None = None
    field: RequestField | None = None

    @property
    def forms(self) -> list[str]:
        """The ways to write the name, such as ``loop[:BODY]``."""
        if self.option is None:
            return [self.word]
        return [f"{self.word}:{self.option.label}" if self.option.required else f"{self.word}[:{self.option.label}]"]

    def accepts(self, value: str | None) -> bool:
        """Return whether a value is of the right kind; None if the name has no colon."""
        if self.option is None or value is None:
            return value is None and not (self.option and self.option.required)
        return self.option.kind is str or (value.isascii() and value.isdigit() and len(value) < 10)

    def made(self, value: str | None) -> Any:
        """Return the recovery for a value that `accepts` allows."""
        if self.option is None or value is None:
            return self.kind()
        return self.kind(**{self.option.parameter: self.option.kind(value)})

    def in_environment(self, value: str) -> str | None:
        """Return the name that a value of the environment variable means; None if it turns the recovery off."""
        if value.lower() in _OFF:
            return None
        if value.lower() in _ON and self.accepts(None):
            return self.word
        if not self.accepts(value):
            wanted = "a whole number" if self.option else "on"
            raise RequestError(f"{self.variable}: must be {wanted} or off, got {value!r:.40}")
        return f"{self.word}:{value}"


RECOVERIES: WordTable[RegisteredRecovery] = WordTable()
"""Recoveries by word."""


def register(
    word: str, option: Option | None = None, *, variable: str | None = None, field: RequestField | None = None
) -> Callable[[T], T]:
    """Give a recovery class a name on the command line, in requests and in ``recover=``.

    The class is a `Recovery`, or has a method ``build(language)`` that returns one, or None if it can't be used: see
    `dflash.generation.recovery.names.Language`.

    Parameters
    ----------
    word : str
        The name: lower-case letters and hyphens.
    option : Option, optional
        Value that may follow after a colon.
    variable : str, optional
        Environment variable that turns the recovery on where nothing else chooses recoveries.
    field : RequestField, optional
        Field of a request that turns it on, beside the field ``recover``.

    Raises
    ------
    ValueError
        If the word has other characters, belongs to another class, or is ``none``, which stands for no recovery.

    Examples
    --------
    ::

        @register("lines", Option("N", "n", required=True))
        class MaxLines: ...
    """
    if word == "none":
        raise ValueError("register: 'none' stands for no recovery; choose another")

    def add(kind: T) -> T:
        RECOVERIES.add(RegisteredRecovery(word, kind, option, variable, field))
        return kind

    return add


def entries() -> list[RegisteredRecovery]:
    """Return all recoveries by the order of their words."""
    return [RECOVERIES[word] for word in sorted(RECOVERIES)]


def forms() -> str:
    """List the forms of all names, for messages."""
    return ", ".join(form for entry in entries() for form in entry.forms)


def parse(text: str) -> Any:
    """Make the recovery that a name stands for; None for ``""`` and ``"none"``."""
    word, colon, value = text.partition(":")
    if word in ("", "none") and not value:
        return None
    entry, given = RECOVERIES.get(word), value if colon else None
    if entry is None or not entry.accepts(given):
        option = entry and entry.option
        hint = f"; {option.label} is a whole number" if option and option.kind is int else did_you_mean(word, RECOVERIES)
        raise RequestError(f"recover: {text!r:.60} is not one of {forms()}{hint}")
    try:
        return entry.made(given)
    except RequestError as error:
        raise RequestError(f"recover: {text!r:.60}: {error}") from error


def from_environment(environment: Mapping[str, str] = os.environ) -> str:
    """Return the names of the recoveries that the environment turns on; 0, false, no and off mean none.

    A variable is 1 or the value after the colon of the name, as ``DFLASH_STALL_TOOL_PREFIX=bash`` for ``stall:bash``.
    """
    found = (each.in_environment(environment.get(each.variable, "").strip()) for each in entries() if each.variable)
    return ",".join(name for name in found if name)


def from_request(fields: RequestFields) -> tuple[Any, ...]:
    """Return the recoveries that fields of their own turn on, by the order of the fields' names."""
    found = sorted((each.field for each in RECOVERIES.values() if each.field), key=lambda field: field.name)
    return tuple(recovery for field in found if (recovery := field.read(fields)) is not None)
