"""Reasoning between its special tokens, followed token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from dflash.decode.view import RecoveryView


def in_reasoning(token_ids: Sequence[int], think: tuple[int, int] | None, eos: Collection[int] = ()) -> bool:
    """Return True if reasoning is open at the end of a sequence.

    Parameters
    ----------
    token_ids : sequence of int
        Prompt, or prompt and output. A chat template may open reasoning at its end.
    think : (int, int) or None
        Tokens that open and close reasoning; None if the model has none.
    eos : collection of int
        End tokens. One of them ends the message before, whose reasoning does not count.

    Notes
    -----
    The last of all these tokens decides, so the cost is the distance to it.
    """
    if think is None:
        return False
    return next((token == think[0] for token in reversed(token_ids) if token in think or token in eos), False)


class ReasoningTracker:
    """Counts the reasoning tokens of an output. Made in `Recovery.start`; constant memory and time for each token.

    Attributes
    ----------
    is_open : bool
        True inside reasoning, after the last token that was fed.
    n_reasoning : int
        Reasoning tokens so far, without the special tokens.
    n_tokens : int
        Output tokens that were fed.
    """

    def __init__(self, session: RecoveryView) -> None:
        self._think = session.special_tokens.think
        self._begins = in_reasoning(session.token_ids, self._think, session.eos)
        self._begin()

    def catch_up(self, session: RecoveryView) -> None:
        """Count the output again if earlier verdicts have changed it. Called first in each step."""
        if self.n_tokens != session.n_tokens:
            self._begin()
            for token in session.output_ids:
                self.feed(token)

    def feed(self, token: int) -> None:
        """Add the next token of the output."""
        self.n_tokens += 1
        if self._think is not None and token in self._think:
            self.is_open = token == self._think[0]
        else:
            self.n_reasoning += self.is_open

    def _begin(self) -> None:
        self.n_tokens = self.n_reasoning = 0
        self.is_open = self._begins
