"""Typed access to the fields of a JSON object; errors name the field."""

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dflash.errors import RequestError
from dflash.json_types import JsonMapping


class FieldError(RequestError):
    """A field of a request's body is not valid."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60
_short.maxlevel = 3


def shown(value: object) -> str:
    """Return `value` for a message: at most 60 characters on one line, in time independent of its size."""
    text = _short.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """A JSON object of a request's body.

    A field that is absent or null has its default. Integers may be floats without a fraction, since some clients have no
    other number type. Booleans are never numbers.

    path: path of the object in the body, for messages; empty at the top level.
    names: names under which the client sent fields that have another name here, for messages.
    """

    def __init__(self, value: object, path: str = "", *, names: Mapping[str, str] | None = None) -> None:
        if not isinstance(value, dict):
            raise FieldError(path, f"must be a JSON object, got {shown(value)}")
        self.values = value
        self.path = path
        self._names = names or {}

    def name(self, field: str) -> str:
        """Return the name of a field with its path."""
        field = self._names.get(field, field)
        return f"{self.path}.{field}" if self.path else field

    def filled(self, defaults: JsonMapping) -> "Fields":
        """Return the same fields with values for those that are absent or null."""
        return self.changed({name: value for name, value in defaults.items() if self.values.get(name) is None})

    def changed(self, values: JsonMapping) -> "Fields":
        """Return the same fields with other values for some."""
        return self.renamed({}, values)

    def renamed(self, names: Mapping[str, str], values: JsonMapping) -> "Fields":
        """Return the same fields with other values for some, of which the client sent some under other names."""
        return Fields({**self.values, **values}, self.path, names={**self._names, **names})

    def error(self, field: str, message: str) -> FieldError:
        """Return an error about `field`."""
        return FieldError(self.name(field), message)

    def any(self, field: str, *, required: bool = False) -> Any:
        """Return the value of `field`, None if it is absent."""
        value = self.values.get(field)
        if value is None and required:
            raise self.error(field, "is required")
        return value

    def text(self, field: str, default: str | None = None, *, required: bool = False) -> Any:
        """Return a string."""
        value = self.any(field, required=required)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(field, f"must be a string, got {shown(value)}")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """Return a boolean."""
        value = self.any(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(field, f"must be true or false, got {shown(value)}")
        return value

    def number(self, field: str, low: float, high: float, default: float | None = None) -> Any:
        """Return a finite number from `low` to `high` as a float."""
        value = self.any(field)
        if value is None:
            return default
        # compare before converting to float: a JSON integer may have hundreds of digits
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(field, f"must be a number from {low:g} to {high:g}, got {shown(value)}")
        return float(value)

    def integer(self, field: str, low: int, high: int, default: int | None = None) -> Any:
        """Return a whole number from `low` to `high`."""
        value = self.any(field)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value != int(value):
            raise self.error(field, f"must be a whole number from {low} to {high}, got {shown(value)}")
        return int(value)

    def choice(self, field: str, choices: Sequence[str], default: str | None = None) -> Any:
        """Return a string that is one of `choices`."""
        value = self.text(field, default)
        if value is not None and value not in choices:
            raise self.error(field, f"must be one of {', '.join(choices)}, got {shown(value)}")
        return value

    def list(self, field: str, *, required: bool = False) -> list[Any] | None:
        """Return a JSON array."""
        value = self.any(field, required=required)
        if value is not None and not isinstance(value, list):
            raise self.error(field, f"must be an array, got {shown(value)}")
        return value

    def object(self, field: str) -> "Fields | None":
        """Return a JSON object as `Fields`."""
        value = self.any(field)
        return None if value is None else Fields(value, self.name(field))

    def objects(self, field: str, *, required: bool = False) -> "Iterable[Fields]":
        """Return the objects of a JSON array as `Fields`."""
        items = self.list(field, required=required) or []
        return (Fields(item, f"{self.name(field)}[{i}]") for i, item in enumerate(items))
