"""How settings print themselves."""

from dataclasses import MISSING, fields
from typing import Any


def spelled(value: Any) -> str:
    """The Python that makes a dataclass: the first setting by place, others by name, none that is as if untold."""
    told, by_place = [], True
    for field in fields(value):
        given = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if given != default:
            told.append(repr(given) if by_place and not told else f"{field.name}={given!r}")
        by_place = False
    return f"{type(value).__name__}({', '.join(told)})"
