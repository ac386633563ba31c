"""The only place where a token is picked."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dflash.decode.draft import Draft
from dflash.decode.picker import TokenLogprobs
from dflash.errors import DFlashError

if TYPE_CHECKING:
    from dflash.decode.session import Session


class Kept(NamedTuple):
    """What a step adds to a text.

    Parameters
    ----------
    tokens : list of int
        New tokens, at least one.
    rows : list of int
        One a token: the row of the span that it was picked from, root first. These rows are text now.
    accepted : int
        How many of the tokens, from the first on, were guessed.
    logprobs : list of TokenLogprobs
        One a token, if the session wants them.
    finish : str or None
        ``"stop"`` if the last token is an end token, ``"length"`` if the text may not grow further.
    """

    tokens: list[int]
    rows: list[int]
    accepted: int
    logprobs: list[TokenLogprobs]
    finish: str | None


def verify(draft: Draft, logits: NDArray[np.float32], session: "Session") -> Kept:
    """Walk a draft from the root: pick the target's own token, step to the guess that holds it, or stop.

    Parameters
    ----------
    draft : Draft
        Guesses under the last token of the text; the empty one in plain decoding.
    logits : float32 (1 + N, V)
        The target's, for the last token of the text and for each guess.
    session : Session
        Its rules see, at every node, the text with that node's own path; it is left as it was.

    Returns
    -------
    Kept

    Raises
    ------
    DFlashError
        If a row holds nothing to pick from. What a rule raises passes through.

    Notes
    -----
    Each pick is a function of logits, path, seed and position. So every draft leads to the same tokens as none, as
    long as the logits of a node are those of plain decoding.
    """
    picker, history, end_tokens = session.picker, session.history, session.eos
    start, room = len(history), session.limit - len(history)
    picks = picker.pick_all(logits) if picker.batched else None
    tokens: list[int] = []
    rows: list[int] = []
    logprobs: list[TokenLogprobs] = []
    accepted, node, finish = 0, -1, None
    try:
        while True:
            row = node + 1
            token = picks[row] if picks is not None else picker.pick(logits[row], history)
            if token < 0:
                raise DFlashError(f"no token can follow at position {len(history)}: all logits are NaN or masked")
            tokens.append(token)
            rows.append(row)
            if session.wants_logprobs:
                logprobs.append(picker.logprobs(logits[row], token))
            node = draft.child(node, token) if len(draft) else -1
            accepted += node >= 0
            if token in end_tokens:
                finish = "stop"
            elif len(tokens) >= room:
                finish = "length"
            if finish is not None or node < 0:
                return Kept(tokens, rows, accepted, logprobs, finish)
            history.push(token)
    finally:
        history.cut(start)
