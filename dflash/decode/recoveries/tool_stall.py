"""An agent that says what it will do, and then does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dflash.decode.recoveries.base import PASS, Inject, Verdict
from dflash.errors import RequestError

if TYPE_CHECKING:
    from dflash.decode.verify import Accepted
    from dflash.decode.view import RecoveryView

Ids = tuple[int, ...]


@dataclass(frozen=True, repr=False)
class ToolStall:
    """Where a model announces an action and picks the end before any tool call, let it open a tool call instead.

    Parameters
    ----------
    prefix_ids : tuple of int
        The opening of a tool call.
    action_suffixes : tuple of tuple of int
        What an announcement ends in, white space aside: the ways to write a colon.
    announces : callable, optional
        Told the last `tail` tokens of what was said, it says whether they announce an action, so that any other text may end
        in a colon; everything does if None. ``recover="stall"`` asks `dflash.generation.recovery.announcements` in several
        languages.
    lead_ids : tuple of int
        What separates the opening from the text, unless white space does already.
    spaced : frozenset of int
        Tokens that end in a line break.
    tail : int
        How far back it looks; never into the prompt.
    """

    prefix_ids: Ids
    action_suffixes: tuple[Ids, ...]
    announces: Callable[[Sequence[int]], bool] | None = None
    lead_ids: Ids = ()
    spaced: frozenset[int] = frozenset()
    tail: int = 24

    def __post_init__(self) -> None:
        if not self.prefix_ids:
            raise RequestError("prefix_ids: must hold the opening of a tool call")
        if not self.action_suffixes or not all(self.action_suffixes):
            raise RequestError("action_suffixes: must hold what an announcement ends in")

    def start(self, session: RecoveryView) -> _ToolStallState:  # noqa: ARG002
        """Nothing is to be done before the end."""
        return _ToolStallState(self)

    def __repr__(self) -> str:
        return f"ToolStall(<{len(self.prefix_ids)} ids>)"


class _ToolStallState:
    name, restarts = "ToolStall", False

    def __init__(self, stall: ToolStall) -> None:
        self._stall = stall

    def check_step(self, session: RecoveryView, accepted: Accepted) -> Verdict:
        if accepted.finish != "stop" or accepted.tokens[-1] not in session.eos:
            return PASS
        n, stall = len(accepted.tokens) - 1, self._stall
        text = session.output_ids + accepted.tokens[:n]
        if not self._is_announcement(session, text):
            return PASS
        spaced = text[-1] in session.special_tokens.silent or text[-1] in stall.spaced
        tokens = stall.prefix_ids if spaced else stall.lead_ids + stall.prefix_ids
        # the opening is a call: whatever comes now is not another stall
        session.recovery_states.remove(self)
        return Inject(n, tokens, f"it announced an action and ended after {len(text)} tokens: a tool call was opened")

    def _is_announcement(self, session: RecoveryView, text: list[int]) -> bool:
        stall, special_tokens = self._stall, session.special_tokens
        if special_tokens.call is not None and special_tokens.call[0] in text:
            return False
        if special_tokens.think is not None and _thinks(session.prompt_ids + text, *special_tokens.think):
            return False
        end = len(text)
        while end and text[end - 1] in special_tokens.silent:
            end -= 1
        said = text[:end]
        if not any(said[-len(suffix) :] == list(suffix) for suffix in stall.action_suffixes):
            return False
        return stall.announces is None or stall.announces(said[-stall.tail :])


def _thinks(text: list[int], opened: int, closed: int) -> bool:
    """Whether the last mark of reasoning opens it."""
    return next((token == opened for token in reversed(text) if token in (opened, closed)), False)
