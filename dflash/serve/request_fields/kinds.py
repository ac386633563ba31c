"""Types of plain fields: reading, range, and a value that is refused."""

from dataclasses import dataclass
from typing import Any, Protocol

from dflash.generation.messages.fields import Fields


class Kind(Protocol):
    """Type, range and default of a field.

    Attributes
    ----------
    wrong : object
        A value that `read` refuses.
    """

    @property
    def wrong(self) -> Any:
        """A value that `read` refuses."""
        ...

    @property
    def words(self) -> str:
        """The type and range for the page."""
        ...

    def read(self, fields: Fields, name: str) -> Any:
        """Return the value of a field, or the default.

        Raises FieldError if the value has another type or is out of range.
        """
        ...


@dataclass(frozen=True, slots=True)
class Number:
    """A number from `low` to `high`."""

    low: float
    high: float
    default: float | None = None

    @property
    def wrong(self) -> Any:
        """A number above the range."""
        return self.high + 1

    @property
    def words(self) -> str:
        """The range."""
        return f"{self.low:g} to {self.high:g}"

    def read(self, fields: Fields, name: str) -> Any:
        """Return a float."""
        return fields.number(name, self.low, self.high, self.default)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from `low` to `high`; `none`, if given, stands for no value."""

    low: int
    high: int
    default: int | None = None
    none: int | None = None

    @property
    def wrong(self) -> Any:
        """A number above the range."""
        return self.high + 1

    @property
    def words(self) -> str:
        """The range."""
        high = "" if self.high >= 2**31 - 1 else f" to {self.high}"
        least = f"from {self.low}" if self.low > -(2**31) else "any"
        return f"whole number, {least}{high}" + ("" if self.none is None else f"; {self.none} is none")

    def read(self, fields: Fields, name: str) -> Any:
        """Return an integer."""
        value = fields.any(name)
        if self.none is not None and type(value) in (int, float) and value == self.none:
            return self.default
        return fields.integer(name, self.low, self.high, self.default)


@dataclass(frozen=True, slots=True)
class Flag:
    """True or false."""

    default: bool = False

    @property
    def wrong(self) -> Any:
        """A text."""
        return "yes"

    @property
    def words(self) -> str:
        """The type and the default."""
        return f"true or false; {str(self.default).lower()} by default"

    def read(self, fields: Fields, name: str) -> Any:
        """Return a boolean."""
        return fields.flag(name, self.default)


@dataclass(frozen=True, slots=True)
class Word:
    """A text: one of `choices`, or any of 1 to `longest` characters."""

    choices: tuple[str, ...] = ()
    default: str | None = None
    longest: int | None = None

    @property
    def wrong(self) -> Any:
        """A number."""
        return 5

    @property
    def words(self) -> str:
        """The choices."""
        return (
            ", ".join(self.choices)
            if self.choices
            else "text" + (f", at most {self.longest} characters" if self.longest else "")
        )

    def read(self, fields: Fields, name: str) -> Any:
        """Return a string."""
        if self.choices:
            return fields.choice(name, self.choices, self.default)
        text = fields.text(name, self.default)
        if self.longest is not None and text is not None and not 0 < len(text) <= self.longest:
            raise fields.error(name, f"must have 1 to {self.longest} characters, got {len(text)}")
        return text


@dataclass(frozen=True, slots=True)
class Ids:
    """At most `most` token ids."""

    most: int

    @property
    def wrong(self) -> Any:
        """A negative id."""
        return [-1]

    @property
    def words(self) -> str:
        """The number."""
        return f"at most {self.most} token ids"

    def read(self, fields: Fields, name: str) -> Any:
        """Return a tuple of integers."""
        ids = fields.list(name) or []
        if len(ids) > self.most:
            raise fields.error(name, f"holds {len(ids)} token ids, at most {self.most} are allowed")
        if not all(type(token) is int and 0 <= token < 2**31 for token in ids):
            raise fields.error(name, "must be an array of token ids")
        return tuple(dict.fromkeys(ids))
