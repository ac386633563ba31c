"""Interfaces of output formats: reasoning tags, and tool calls."""

from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from dflash.generation.parsers.events import EventSink
from dflash.generation.parsers.offered import OfferedTools


class Stage(Enum):
    """Progress of a call."""

    HEAD = auto()
    """It may still turn out to be text."""
    BODY = auto()
    """Its start was sent."""
    REJECTED = auto()
    """It is text."""
    ENDED = auto()
    """The model has closed it."""


class CallReader(Protocol):
    """Reader of one call. An `OutputParser` makes one where an opening tag stands.

    Attributes
    ----------
    stage : Stage
        Progress; `read` advances it.
    written : str
        Text that was consumed while the stage was `HEAD`, exactly as written. It is the text of a rejected call.
    is_block : bool
        A rejected call has the form of a call. The text up to its closing tag is no call either.
    """

    stage: Stage
    is_block: bool

    @property
    def written(self) -> str:
        """Text that was consumed before the call started or was rejected."""
        ...

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it.

        Called again with the rest and more text as long as the stage is `HEAD` or `BODY`. The rest must be short: less than
        a constant number of characters.
        """
        ...

    def finish(self, rest: str, *, cut: bool) -> None:
        """Pass on the text that was held back in stage `BODY`. Called once, if the run ends there.

        Parameters
        ----------
        cut : bool
            The model has not ended the completion itself.
        """
        ...


class ToolFormat(Protocol):
    """Format of tool calls.

    Attributes
    ----------
    openings : tuple of str
        Tags that open a call in the message, as `TagSearch` takes them.
    reasoning_openings : tuple of str
        Tags that open a call inside reasoning.
    closings : tuple of str
        Tags that end the text of a call to an unknown function.
    """

    openings: tuple[str, ...]
    reasoning_openings: tuple[str, ...]
    closings: tuple[str, ...]
    matches: Callable[[str], bool]

    def __init__(self, tools: OfferedTools) -> None: ...

    def reader(self, sink: EventSink, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call."""
        ...


class ReasoningFormat(Protocol):
    """Tags around reasoning.

    Attributes
    ----------
    opening, closing : str
        The tags.
    """

    opening: str
    closing: str
    matches: Callable[[str], bool]
