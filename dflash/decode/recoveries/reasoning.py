"""Reasoning of an output, followed token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash.decode.output_part import OutputPart, ReasoningCount

if TYPE_CHECKING:
    from dflash.decode.view import RecoveryView


class ReasoningTracker:
    """Follows the parts of an output and counts its reasoning tokens. Made in `Recovery.start`.

    has_call: True if the output holds a tool call.
    n_tokens: output tokens that were fed.
    """

    def __init__(self, session: RecoveryView) -> None:
        self._think = session.special_tokens.think or ()
        self._begin(session)

    @property
    def part(self) -> OutputPart:
        """Part of the output that the next token belongs to."""
        return self._reader.part

    @property
    def is_open(self) -> bool:
        """True inside reasoning, after the last token that was fed."""
        return self._reader.part is OutputPart.REASONING

    @property
    def is_reasoning(self) -> bool:
        """True inside reasoning, also where text may open a call there."""
        return self._count.is_undecided if self.part is OutputPart.OPENING else self.is_open

    @property
    def n_reasoning(self) -> int:
        """Reasoning tokens so far, without the special tokens."""
        return self._count.n

    def catch_up(self, session: RecoveryView) -> None:
        """Read the output again if earlier verdicts have changed it. Called first in each step."""
        if self.n_tokens > session.n_tokens:
            self._begin(session)
        for token in session.token_ids[session.n_prompt + self.n_tokens :]:
            self.feed(token)

    def feed(self, token: int) -> None:
        """Add the next token of the output."""
        self.n_tokens += 1
        before = self._reader.part
        self._reader.feed(token)
        self._count.add(before, self.part, n_tokens=int(token not in self._think))
        if self.part is OutputPart.CALL:
            self.has_call = True

    def _begin(self, session: RecoveryView) -> None:
        self._reader, self._count = session.read_output(), ReasoningCount()
        self.n_tokens, self.has_call = 0, False
