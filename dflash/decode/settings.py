"""Representation of settings."""

from dataclasses import MISSING, fields
from typing import Any


def spelled(value: Any) -> str:
    """Return the Python expression that makes a dataclass.

    The first setting is positional, the others have their names. Settings that equal their default are left out.
    """
    arguments: list[str] = []
    positional = True
    for field in fields(value):
        given = getattr(value, field.name)
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if given != default:
            arguments.append(repr(given) if positional and not arguments else f"{field.name}={given!r}")
        positional = False
    return f"{type(value).__name__}({', '.join(arguments)})"
