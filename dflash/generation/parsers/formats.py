"""Interfaces of output formats: reasoning tags, and tool calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import Enum, auto
from typing import ClassVar, Protocol

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

    @property
    def stage(self) -> Stage:
        """Progress; `read` advances it."""

    @property
    def is_block(self) -> bool:
        """True if a rejected call has the form of a call."""

    @property
    def written(self) -> str:
        """Text that was consumed before the call started or was rejected."""

    def read(self, text: str, start: int) -> int:
        """Consume text and return the position after it.

        Called again with the rest and more text as long as the stage is `HEAD` or `BODY`. The rest must be short: less than
        a constant number of characters.
        """

    def settle(self, rest: str, *, cut: bool) -> bool:
        """Decide about a head, with the text that was held back. Called once, if the run ends in stage `HEAD`.

        Returns
        -------
        bool
            True if the text is no content: the reader has passed calls on, or more text would have made it one.
        """

    def finish(self, rest: str, *, cut: bool) -> None:
        """Pass on the text that was held back in stage `BODY`. Called once, if the run ends there.

        Parameters
        ----------
        cut : bool
            The model has not ended the completion itself.
        """


class ToolFormat(ABC):
    """Base of formats of tool calls.

    Attributes
    ----------
    openings : tuple of str
        Tags that open a call in the message, as `TagSearch` takes them.
    line_openings, first_openings : tuple of str
        Texts that open a call in the message at the start of a line, or only where nothing stands before them.
    reasoning_openings : tuple of str
        Tags that open a call inside reasoning.
    closings : tuple of str
        Tags that end the text of a call to an unknown function.
    closing : str
        Tag after a call, which is dropped; it may be missing. Empty if there is none.
    separator : str
        Text between two calls, before the bracket that opens the second one. Empty if each call has a tag that opens it.
    tokens : tuple of str
        Tokens of the format, the one that opens a call first. They stay in the text even if they are control tokens.
    bound : type, optional
        Format of outputs that a grammar binds to calls or JSON, where that is another one.
    """

    openings: tuple[str, ...] = ()
    line_openings: tuple[str, ...] = ()
    first_openings: tuple[str, ...] = ()
    reasoning_openings: tuple[str, ...] = ()
    closings: tuple[str, ...] = ()
    closing: ClassVar[str] = ""
    separator: ClassVar[str] = ""
    tokens: ClassVar[tuple[str, ...]] = ()
    bound: ClassVar["type[ToolFormat] | None"] = None

    def __init__(self, tools: OfferedTools) -> None:
        self._tools = tools

    @staticmethod
    @abstractmethod
    def matches(source: str) -> bool:
        """Return True if the source of a chat template teaches this format."""

    @abstractmethod
    def reader(self, sink: EventSink, opened: str, *, in_reasoning: bool = False) -> CallReader:
        """Return a reader for the next call.

        Parameters
        ----------
        opened : str
            The tag that opens the call, or `separator` after an earlier one. It is the first text that the reader gets;
            white space may come before a separator.
        in_reasoning : bool
            The tag stands inside reasoning.
        """


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
