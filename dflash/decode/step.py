"""One step of one session."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dflash.decode.drafting.draft import EMPTY, Draft


class Step(NamedTuple):
    """Result of one step of the engine for one session.

    Parameters
    ----------
    tokens : list of int
        New output ids; empty for a chunk of the prompt, and if the session ends without a token.
    drafted, accepted : int
        Number of draft tokens, and of accepted ones. The first `accepted` of `tokens` are these, the others the target's.
    prefilled : int
        Number of prompt tokens that were prefilled.
    batch : int
        Rows of all sessions in the forward.
    propose, forward, verify, commit : float
        Seconds; the first two for all sessions of the step together. `commit` includes observing.
    finish : str or None
        Reason of the session's end, in its last step.
    draft : Draft
        The draft tokens.
    rows : sequence of int
        For each token the row that it was picked from: 0 for the last token of the sequence, ``1 + i`` for draft token i.
    injected : int
        Number of tokens at the start of `tokens` that a recovery injected.
    note : str
        Interventions of recoveries in this step; empty if there were none.
    by : str
        Class name of the drafter that made the draft, if several take turns.
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
