"""What a step of the loop did to one session, and who may be told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash.decode.drafting.draft import EMPTY, Draft


class Step(NamedTuple):
    """One change of a session.

    Parameters
    ----------
    tokens : list of int
        New text; empty for a chunk of the prompt, and where a session ends without a token.
    drafted, accepted : int
        How many tokens were guessed; the first `accepted` of `tokens` were right guesses, the rest is the target's own.
    prefilled : int
        Prompt tokens that were read.
    batch : int
        Rows of all sessions in that forward.
    propose, forward, verify, commit : float
        Seconds; the first two for all sessions of the step together.
    finish : str or None
        Why the session ended, in the step that ended it.
    draft : Draft
        The guesses.
    rows : sequence of int
        One a token: where it was picked, 0 under the last token of the text, ``1 + i`` under guess ``i``.
    injected : int
        The first of `tokens` that a recovery put there.
    note : str
        What a recovery did in this step; empty if nothing.
    by : str
        Whose guesses they are, where several drafters take turns.
    """

    tokens: list[int]
    drafted: int = 0
    accepted: int = 0
    prefilled: int = 0
    batch: int = 0
    propose: float = 0.0
    forward: float = 0.0
    verify: float = 0.0
    commit: float = 0.0
    finish: str | None = None
    draft: Draft = EMPTY
    rows: Sequence[int] = ()
    injected: int = 0
    note: str = ""
    by: str = ""
