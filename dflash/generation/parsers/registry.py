"""Table of output formats by name. Each format registers itself in its own file."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

from dflash.errors import RequestError

Role = Literal["reasoning", "tool"]
T = TypeVar("T", bound=type)

_TABLE: dict[tuple[Role, str], Any] = {}


def register(role: Role, word: str) -> Callable[[T], T]:
    """Give a `ReasoningFormat` or `ToolFormat` a name.

    Parameters
    ----------
    role : str
        ``"reasoning"`` or ``"tool"``.
    word : str
        The name. Where templates match several formats, the one registered first is used.

    Raises
    ------
    ValueError
        If the name belongs to another class of this role.
    """

    def add(kind: T) -> T:
        known = _TABLE.get((role, word))
        # a class may be defined again, as in a notebook's cell
        if known is not None and (known.__module__, known.__name__) != (kind.__module__, kind.__name__):
            raise ValueError(f"register: {word!r} is the name of {known.__name__}; choose another")
        _TABLE[role, word] = kind
        return kind

    return add


def words(role: Role) -> tuple[str, ...]:
    """Return the names of the formats of a role."""
    return tuple(word for each, word in _TABLE if each == role)


def matching(role: Role, source: str) -> str | None:
    """Return the name of the format that the source of a chat template chooses; None if no format matches."""
    return next((word for (each, word), kind in _TABLE.items() if each == role and kind.matches(source)), None)


def find(role: Role, wanted: str | None, source: str) -> Any:
    """Return the class of a format.

    role: ``"reasoning"`` or ``"tool"``.
    wanted: a name, or ``"none"``; None chooses by the chat template.
    Returns: None for ``"none"``, and if no format matches the template.
    """
    if wanted is None:
        wanted = matching(role, source) or "none"
    if wanted == "none":
        return None
    if not isinstance(wanted, str) or (role, wanted) not in _TABLE:
        raise RequestError(f"{role}_parser: {wanted!r:.60} is not known; there are none, {', '.join(words(role))}")
    return _TABLE[role, wanted]
