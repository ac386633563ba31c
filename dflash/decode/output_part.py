"""Parts of an output: reasoning, content and tool calls, followed token by token."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dflash.decode.special_tokens import SpecialTokens


class OutputPart(Enum):
    """Part of an output that the next token belongs to."""

    REASONING = auto()
    CONTENT = auto()
    OPENING = auto()
    """A call may have been opened: what comes next tells whether it is one, or text of the part before it."""
    CALL = auto()


def prompt_reasoning(prompt_ids: Sequence[int], think: tuple[int, int] | None, ends: Collection[int] = ()) -> bool | None:
    """Return True if a prompt leaves reasoning open, False if it has closed it, None if it does neither.

    think: tokens that open and close reasoning; None if the model has none.

    The last of all these tokens decides, so the cost is the distance to it.
    """
    if think is None:
        return None
    token = next((token for token in reversed(prompt_ids) if token in think or token in ends), None)
    return None if token is None or token in ends else token == think[0]


class OutputReader(Protocol):
    """Follows one output: the parser of the completion, or special tokens alone where there is none."""

    @property
    def part(self) -> OutputPart:
        """Part of the output that the next token belongs to."""

    def feed(self, token: int) -> None:
        """Add the next token."""


class SpecialTokenReader:
    """Reader of an output that has no parser: special tokens open and close its parts."""

    def __init__(self, special_tokens: SpecialTokens, *, is_open: bool) -> None:
        nothing = None, None
        self._think, self._call = special_tokens.think or nothing, special_tokens.call or nothing
        self.part = OutputPart.REASONING if is_open else OutputPart.CONTENT

    def feed(self, token: int) -> None:
        """Add the next token."""
        if self.part is OutputPart.CALL:
            self.part = OutputPart.CONTENT if token == self._call[1] else OutputPart.CALL
        elif token == self._call[0]:
            self.part = OutputPart.CALL
        elif token in self._think:
            self.part = OutputPart.REASONING if token == self._think[0] else OutputPart.CONTENT


class ReasoningCount:
    """Counts reasoning tokens. Tokens that may open a call count once it is known that they do not.

    n: reasoning tokens, with those that open and close it.
    """

    def __init__(self) -> None:
        self.n = self._n_undecided = 0
        self._before = OutputPart.CONTENT

    @property
    def is_undecided(self) -> bool:
        """True if the last tokens stand in reasoning and may open a call."""
        return self._n_undecided > 0 and self._before is OutputPart.REASONING

    def add(self, before: OutputPart, after: OutputPart, n_tokens: int = 1) -> None:
        """Add tokens between two parts of an output."""
        if after is OutputPart.OPENING:
            if before is not OutputPart.OPENING:
                self._before, self._n_undecided = before, 0
            self._n_undecided += n_tokens
            return
        if before is OutputPart.OPENING:
            before, n_tokens, self._n_undecided = self._before, n_tokens + self._n_undecided, 0
        if after is not OutputPart.CALL and OutputPart.REASONING in (before, after):
            self.n += n_tokens
