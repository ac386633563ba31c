"""Read a JSON object field by field; whatever is wrong is said with the field's name."""

import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from dflash.errors import RequestError


class FieldError(RequestError):
    """A field of a request's body can't be used."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}" if field else message)
        self.field = field


_short = reprlib.Repr()
_short.maxstring = _short.maxlong = _short.maxother = 60
_short.maxlevel = 3


def shown(value: object) -> str:
    """Return `value` as messages quote it: at most 60 characters on one line, in time that does not grow with the value."""
    text = _short.repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Fields:
    """A JSON object of a request's body.

    A field that is absent or null is given as its default. Integers may come as floats without a fraction, since some
    clients know no other numbers; booleans are never numbers.

    Parameters
    ----------
    value : object
        What the JSON held; anything but an object is refused.
    path : str
        Where it stands in the body, for messages; empty at the top.

    Raises
    ------
    FieldError
        From every method, when a field is of the wrong kind or out of range.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise FieldError(path, f"must be a JSON object, got {shown(value)}")
        self.values = value
        self.path = path

    def name(self, field: str) -> str:
        """The field's name with the path that leads to it."""
        return f"{self.path}.{field}" if self.path else field

    def error(self, field: str, message: str) -> FieldError:
        """What to raise about `field`."""
        return FieldError(self.name(field), message)

    def any(self, field: str, *, required: bool = False) -> Any:
        """Whatever `field` holds, None when it is absent."""
        value = self.values.get(field)
        if value is None and required:
            raise self.error(field, "is required")
        return value

    def text(self, field: str, default: str | None = None, *, required: bool = False) -> Any:
        """A string."""
        value = self.any(field, required=required)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(field, f"must be a string, got {shown(value)}")
        return value

    def flag(self, field: str, default: bool = False) -> bool:
        """A boolean."""
        value = self.any(field)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(field, f"must be true or false, got {shown(value)}")
        return value

    def number(self, field: str, low: float, high: float, default: float | None = None) -> Any:
        """A finite number from `low` to `high`, as a float."""
        value = self.any(field)
        if value is None:
            return default
        # compared before it is made a float, since a JSON integer may have a thousand digits
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(field, f"must be a number from {low:g} to {high:g}, got {shown(value)}")
        return float(value)

    def integer(self, field: str, low: int, high: int, default: int | None = None) -> Any:
        """A whole number from `low` to `high`."""
        value = self.any(field)
        if value is None:
            return default
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not low <= value <= high or value != int(value):
            raise self.error(field, f"must be a whole number from {low} to {high}, got {shown(value)}")
        return int(value)

    def choice(self, field: str, choices: Sequence[str], default: str | None = None) -> Any:
        """One of a few strings."""
        value = self.text(field, default)
        if value is not None and value not in choices:
            raise self.error(field, f"must be one of {', '.join(choices)}, got {shown(value)}")
        return value

    def list(self, field: str, *, required: bool = False) -> list[Any] | None:
        """A JSON array."""
        value = self.any(field, required=required)
        if value is not None and not isinstance(value, list):
            raise self.error(field, f"must be an array, got {shown(value)}")
        return value

    def object(self, field: str) -> "Fields | None":
        """A JSON object, to read on."""
        value = self.any(field)
        return None if value is None else Fields(value, self.name(field))

    def objects(self, field: str, *, required: bool = False) -> "Iterable[Fields]":
        """An array of JSON objects, each to read on."""
        items = self.list(field, required=required) or []
        return (Fields(item, f"{self.name(field)}[{i}]") for i, item in enumerate(items))
